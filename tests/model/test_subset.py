import pytest
import torch

from scope_wm.background import Copy, Ignored
from scope_wm.model.predictor import Predictor, Residual
from scope_wm.model.rollout import rollout
from scope_wm.model.subset import draw_patches, of_patches
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import Fuse, TokenConfig, WorldModel, dense
from scope_wm.selector import LatinHypercubeSelector, MotionSelector, RandomSelector

N, K, H = 16, 5, 3


def model(selector: type[RandomSelector] | type[LatinHypercubeSelector] = RandomSelector) -> WorldModel:
    torch.manual_seed(0)
    tokens = TokenConfig(num_tokens=N, visual=6, proprio=2, action=3, embedding=2)
    sizes = TransformerConfig(depth=2, heads=2, head_width=4, mlp_width=8, dropout=0.0)
    output = Residual(tokens.width)
    torch.nn.init.normal_(output.change.weight)
    predictor = Predictor(width=tokens.width, num_tokens=N, history=H, transformer=sizes, output=output)
    return WorldModel(
        Fuse(tokens), predictor, selector(K, torch.Generator().manual_seed(1)), Ignored()
    ).eval()


@torch.no_grad()
def test_a_model_of_some_patches_is_a_group_that_sees_only_itself() -> None:
    whole = model()
    patches = torch.tensor([1, 4, 7, 8, 15])
    tokens = torch.randn(2, H, N, whole.fuse.config.width)
    indices = torch.arange(N).expand(2, H, N)
    groups = torch.zeros(N, dtype=torch.long).index_fill(0, patches, 1).expand(2, H, N)
    grouped = dense(whole.fuse, whole.predictor)(tokens, indices, groups)[:, :, patches]
    alone = of_patches(whole, patches)
    part = tokens[:, :, patches]
    torch.testing.assert_close(alone(part, alone.select_window(part)), grouped)
    assert (grouped - part).abs().max() > 0.1


@torch.no_grad()
def test_nothing_outside_is_needed_to_imagine_on() -> None:
    whole, patches = model(), torch.tensor([0, 3, 9, 10, 12])
    visual, proprio, actions = torch.randn(1, N, 6), torch.randn(1, 2), torch.randn(1, 5, 3)
    alone = of_patches(whole, patches)
    assert alone.fuse.config.num_tokens == alone.selector.k == K
    imagined = rollout(alone, visual[:, patches], proprio, actions)
    assert imagined.shape == (1, 5, K, 10)

    class Fixed(torch.nn.Module):
        k = K

        def forward(self, visual: torch.Tensor, *_: object) -> torch.Tensor:
            return patches.expand(*visual.shape[:-2], -1)

    # A frame without an action has its action channels from the last one: they mean nothing.
    within = rollout(WorldModel(whole.fuse, whole.predictor, Fixed(), Copy()), visual, proprio, actions)
    torch.testing.assert_close(imagined[..., :-2], within[:, :, patches, :-2])


def test_the_model_itself_stays_as_it_was() -> None:
    whole = model()
    before = whole.predictor.positions.clone()
    of_patches(whole, torch.arange(K)).predictor.positions.zero_()
    assert torch.equal(whole.predictor.positions, before)
    assert whole.fuse.config.num_tokens == N


@pytest.mark.parametrize("selector", [RandomSelector, LatinHypercubeSelector])
def test_patches_are_drawn_anew_every_time(
    selector: type[RandomSelector] | type[LatinHypercubeSelector],
) -> None:
    drawn = [draw_patches(model(selector)) for _ in range(2)]
    assert torch.equal(*drawn)
    assert drawn[0].shape == (K,)
    assert (drawn[0].diff() > 0).all()
    one = model(selector)
    assert not torch.equal(draw_patches(one), draw_patches(one))


def test_a_selector_that_looks_draws_nothing() -> None:
    whole = model()
    whole.selector = MotionSelector(K, torch.zeros(N, 6))
    with pytest.raises(ValueError, match="draws at random, got MotionSelector"):
        draw_patches(whole)
