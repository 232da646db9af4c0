"""What the doctor finds of the device made in Python."""

from elsewhere import DEVICE

from discreet.audit.doctor import examine


def test_the_device_holds():
    found = examine(DEVICE, seconds=0)
    assert found.holds, found
    assert [check.holds for check in found.checks] == [True, True]
