"""User data of a server as Heat makes it, by Heat's own code: run with the Python of Heat's virtual environment.

In: the server's metadata as JSON. Out: the multipart document that Nova would hand to cloud-init."""
import json
import sys

from heat.engine.clients.os.nova import NovaClientPlugin

metadata = json.load(sys.stdin)
# the method uses nothing of its object but the Ignition helpers of its class
plugin = NovaClientPlugin.__new__(NovaClientPlugin)
sys.stdout.write(plugin.build_userdata(metadata, userdata="", user_data_format="SOFTWARE_CONFIG"))
