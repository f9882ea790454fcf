"""The part of PyTorch's memory on a GPU that can be tested without one."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from jupyter_gpushare.client.torch.lanes.cuda_lane import why_not
from jupyter_gpushare.client.torch.storages.pools import move_storages


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_reason_is_reported() -> None:
    assert why_not() == "PyTorch finds no GPU"


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # that of earlier tests
def test_tensors_without_memory_are_passed() -> None:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(3))
    lost = torch.ones(3)
    lost.untyped_storage().resize_(0)
    assert move_storages(lambda address: address == 0)
    assert fake.shape == lost.shape


def test_storages_move_with_all_that_shares_them_and_nothing_else_does() -> None:
    model = torch.nn.Linear(300, 300)
    model(torch.ones(1, 300)).sum().backward()
    tensors = {model.weight, model.weight.grad}
    view = model.weight.detach()[7]
    before = {tensor: tensor.data_ptr() for tensor in tensors}
    bits = {tensor: tensor.detach().clone() for tensor in tensors}
    bias = model.bias.data_ptr()
    addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    assert move_storages(addresses.__contains__)
    for tensor in tensors:
        assert tensor.data_ptr() != before[tensor]
        assert torch.equal(tensor, bits[tensor])
    assert view.data_ptr() == model.weight[7].data_ptr()
    assert model.bias.data_ptr() == bias


def test_a_backward_pass_follows_storages_that_moved_since_its_forward_pass() -> None:
    weight = torch.randn(200, 200, requires_grad=True)
    hidden = weight.exp()
    loss = (hidden * hidden).sum()
    moving = {hidden.untyped_storage().data_ptr(), weight.untyped_storage().data_ptr()}
    before = hidden.data_ptr()
    assert move_storages(moving.__contains__)
    assert hidden.data_ptr() != before
    loss.backward()
    assert torch.equal(weight.grad, 2 * hidden * hidden)


@pytest.mark.system
def test_a_look_for_storages_ends_in_the_generation_that_has_them() -> None:
    gc.collect()  # all that is there is old then
    old, young = torch.ones(5), torch.ones(6)
    gc.collect(0)
    del young
    young = torch.ones(7)
    left = {young.untyped_storage().data_ptr(), old.untyped_storage().data_ptr()}

    def is_to_move(address: int) -> bool:
        return address in left

    before = old.data_ptr()
    assert move_storages(is_to_move, lambda: True)
    assert old.data_ptr() == before
    assert move_storages(is_to_move)
    assert old.data_ptr() != before
