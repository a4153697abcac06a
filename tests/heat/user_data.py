"""A server's user data as Heat makes it, by Heat's own code: run with the Python of Heat's virtual environment.

In: JSON with the server's `metadata` and the `user_data` of its template. Out: what Nova would hand to cloud-init or Ignition."""
import json
import sys

from heat.engine.clients.os.nova import NovaClientPlugin

given = json.load(sys.stdin)
# the method uses nothing of its object but the Ignition helpers of its class
plugin = NovaClientPlugin.__new__(NovaClientPlugin)
sys.stdout.write(plugin.build_userdata(given["metadata"], userdata=given["user_data"], user_data_format="SOFTWARE_CONFIG"))
