"""Nova's metadata service, as far as it gives a server its user data: at its usual address, which the lab's bridge has while it runs."""
import sys
from pathlib import Path

from lib.common import in_lab
from lib.scripted_server import Answer, Handler, Scripted, State, serve, write

ADDRESS = "169.254.169.254"


class MetadataService(Scripted):
    module = "lib.metadata_service"

    def __init__(self, folder: Path):
        super().__init__(folder, ADDRESS, 80)
        self.base = f"http://{ADDRESS}"

    def give(self, user_data: str):
        write(self.folder / "user_data.json", user_data)

    def start(self) -> "MetadataService":
        in_lab("ip", "address", "replace", f"{ADDRESS}/32", "dev", "br0")
        return super().start()

    def stop(self):
        super().stop()
        in_lab("ip", "address", "del", f"{ADDRESS}/32", "dev", "br0", check=False)


class NovaHandler(Handler):
    def usual(self, target: str, body: bytes, rule: dict) -> Answer:
        if self.command == "GET" and target in ("/latest/user-data", "/openstack/latest/user_data"):
            return Answer(200, self.state.read("user_data.json").encode(), "application/octet-stream")
        return Answer(404, b"", "text/html; charset=UTF-8")


if __name__ == "__main__":
    serve(NovaHandler, State(Path(sys.argv[3])), sys.argv[1], int(sys.argv[2]))
