"""Cinder's own fake driver, but with room for more than 5 GiB."""
from cinder.tests import fake_driver


class Roomy(fake_driver.FakeLoggingVolumeDriver):
    def _update_volume_stats(self):
        self._stats = {"volume_backend_name": "fake", "vendor_name": "none", "driver_version": "1", "storage_protocol": "fake",
                       "total_capacity_gb": 10000, "free_capacity_gb": 10000, "reserved_percentage": 0, "QoS_support": False,
                       "location_info": "", "multiattach": False}
