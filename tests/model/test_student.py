import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scope_wm.model.encoder import Encoder
from scope_wm.model.student import Student, StudentConfig, StudentEncoder


def images(count: int = 2) -> Tensor:
    return torch.randint(0, 256, (count, 224, 224, 3), generator=torch.Generator().manual_seed(1)).byte()


@pytest.fixture(scope="module")
def student() -> StudentEncoder:
    torch.manual_seed(0)
    return StudentEncoder(Student(StudentConfig()))


def test_the_student_is_an_encoder_of_196_tokens_of_64_channels(student: StudentEncoder) -> None:
    assert isinstance(student, Encoder)
    assert (student.num_tokens, student.dim) == (196, 64)
    assert student(images()).shape == (2, 196, 64)
    assert StudentEncoder(Student(StudentConfig(dim=7, width=24)))(images()).shape == (2, 196, 7)


def test_the_student_is_small(student: StudentEncoder) -> None:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        student(images(1))
    assert sum(parameter.numel() for parameter in student.parameters()) < 1_000_000
    assert counter.get_total_flops() < 0.45e9  # 10 ms on one core at 45 GFLOP/s


def test_a_token_of_the_student_knows_its_place_and_the_whole_image(student: StudentEncoder) -> None:
    grey = torch.full((1, 224, 224, 3), 128, dtype=torch.uint8)
    corner = grey.clone()
    corner[:, :16, :16] = 255
    same = student(grey)
    assert (same - same.mean(1, keepdim=True)).abs().max() > 1e-3
    change = (student(corner) - same).norm(dim=-1)[0]
    assert change.argmax() in (0, 1, 14, 15)
    assert change[195] > 1e-6


def test_a_student_can_learn_until_it_is_an_encoder() -> None:
    network = Student(StudentConfig(dim=3, width=8, heads=2))
    network(images()).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())
    encoder = StudentEncoder(network).train()
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not encoder(images()).requires_grad
    assert not network.training


def test_the_student_treats_images_one_by_one_on_any_device_and_in_bfloat16(student: StudentEncoder) -> None:
    together = student(images(3))
    torch.testing.assert_close(together, torch.cat([student(image[None]) for image in images(3)]))
    with torch.autocast("cpu", torch.bfloat16):
        assert (student(images(3)).float() - together).norm() < 0.03 * together.norm()
    other = StudentEncoder(Student(StudentConfig())).to("meta")
    assert other(images().to("meta")).shape == (2, 196, 64)


def test_a_student_comes_back_from_its_state(student: StudentEncoder) -> None:
    again = StudentEncoder(Student(StudentConfig()))
    assert again.digest() != student.digest()
    again.load_state_dict(student.state_dict())
    assert again.digest() == student.digest()
    assert torch.equal(again(images()), student(images()))
