"""Without ``VERL_PLATFORM=cpu`` the CPU runtime does not exist."""


def test_no_cpu_module_is_imported(plain):
    assert plain["modules"] == []


def test_nothing_is_registered(plain):
    assert "cpu" not in plain["platforms"]
    assert plain["engines"] == []
    assert "VllmAlias" not in plain["finders"]


def test_registration_succeeds_on_cpu(cpu):
    assert cpu["failures"] == []
