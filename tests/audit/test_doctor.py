"""What is found of a device: here the CPU; tests/device has another one."""

import json

import pytest
import torch

from discreet import ConfigError
from discreet.audit import doctor
from discreet.audit.doctor import Check, Examined, Report, examine

CPU = torch.device("cpu")


def test_the_cpu_holds():
    found = examine(CPU, seconds=0.01)
    assert [(check.name, check.holds) for check in found.checks] == [
        ("gradients", True),
        ("noise", True),
        ("speed", None),
    ]
    assert found.holds
    assert max(found.checks[0].figures.values()) < 1e-12
    assert "320,000 bytes are ChaCha20's" in found.checks[1].words
    assert all(milliseconds > 0 for milliseconds in found.checks[2].figures.values())


def test_gradients_that_are_others_are_found(monkeypatch):
    class Wrong(doctor.Engine):
        def gradients(self, losses, units):
            return super().gradients(1.001 * losses, units)

    monkeypatch.setattr(doctor, "Engine", Wrong)
    check, *_ = examine(CPU, seconds=0).checks
    assert check.holds is False
    assert check.figures["linear"] == pytest.approx(1e-3, rel=1e-3)


def test_one_wrong_bit_of_noise_is_found(monkeypatch):
    stream = doctor.key_stream

    def wrong(*arguments):
        made = stream(*arguments)
        made[7, 123] ^= 1
        return made

    monkeypatch.setattr(doctor, "key_stream", wrong)
    check = examine(CPU, seconds=0).checks[1]
    assert check.holds is False
    assert "are NOT ChaCha20's" in check.words


def test_a_device_that_cannot_is_no_error_of_the_doctor(monkeypatch):
    def breaks(*arguments):
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(doctor, "exactness", breaks)
    found = examine(CPU, seconds=0)
    assert found.checks[0] == Check("gradients", False, "NotImplementedError: no such kernel")
    assert not found.holds
    assert not Report({}, [found]).holds


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="there is no device 'cuda:99' here; there is cpu"):
        doctor.device_of("cuda:99")
    assert doctor.device_of("cpu") == CPU


def test_what_is_sent_in_is_plain_and_names_nobody():
    told = json.dumps(Report(doctor.about(), [Examined("cpu", "x", (Check("noise", None, "words"),))]).to_dict())
    import getpass
    import platform

    assert platform.node() not in told
    assert f"/{getpass.getuser()}" not in told
    assert json.loads(told)["about"]["torch"].startswith(torch.__version__.split("+")[0])
