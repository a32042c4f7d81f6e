"""`minato.patch()`: code that imports torch's loader gets minato's, for a while."""

import sys
from types import ModuleType

import pytest
import torch.utils.data
from torch.utils.data import DataLoader as TorchLoader

import minato


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A loaded module that did `from torch.utils.data import DataLoader`."""
    module = ModuleType("a_users_script")
    exec("from torch.utils.data import DataLoader\nfrom torch.utils.data import DataLoader as DL", vars(module))
    monkeypatch.setitem(sys.modules, "a_users_script", module)
    return module


def test_modules_that_imported_the_name_get_minatos_loader_and_then_torchs_again(script: ModuleType) -> None:
    with minato.patch():
        assert script.DataLoader is script.DL is torch.utils.data.DataLoader is minato.DataLoader
        assert torch.utils.data.dataloader.DataLoader is minato.DataLoader
    assert script.DataLoader is script.DL is torch.utils.data.DataLoader is TorchLoader


def test_a_loader_made_meanwhile_works_there_and_after(script: ModuleType) -> None:
    with minato.patch():
        loader = script.DataLoader(range(10), batch_size=4, num_workers=1)
        assert [b.tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert isinstance(loader, minato.DataLoader)
    assert isinstance(loader, TorchLoader)
    assert sum(len(b) for b in loader) == 10


def test_defaults_fill_in_what_the_maker_did_not_give(script: ModuleType) -> None:
    with minato.patch(in_order=False, on_error="skip"):
        assert script.DataLoader(range(3)).in_order is False
        assert script.DataLoader(range(3), in_order=True).in_order is True
        assert script.DataLoader(range(3)).on_error == "skip"


def test_patches_nest_and_end_with_an_exception(script: ModuleType) -> None:
    with pytest.raises(KeyError), minato.patch():
        with minato.patch(in_order=True):
            pass
        assert script.DataLoader is minato.DataLoader
        raise KeyError
    assert script.DataLoader is TorchLoader


def test_a_function_can_be_decorated(script: ModuleType) -> None:
    @minato.patch()
    def made() -> object:
        return script.DataLoader(range(3))

    assert isinstance(made(), minato.DataLoader)
    assert isinstance(made(), minato.DataLoader)
