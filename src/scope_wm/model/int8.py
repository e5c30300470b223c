"""Linear layers that multiply in int8, for planning on a processor: faster there, and a little less exact.

Weights are rounded for every output, inputs for every call; sums and everything between layers stay float32.
"""

import warnings

from torch import Tensor, nn
from torch.ao.nn.quantized import dynamic
from torch.ao.quantization import per_channel_dynamic_qconfig

from scope_wm.model.world_model import WorldModel


class Int8Linear(nn.Linear):
    """A trained linear layer with rounded weights; the exact ones stay, for who asks for them."""

    def __init__(self, exact: nn.Linear) -> None:
        super().__init__(exact.in_features, exact.out_features, bias=exact.bias is not None, device="meta")
        self.weight, self.bias = exact.weight, exact.bias
        exact.qconfig = per_channel_dynamic_qconfig  # type: ignore[assignment]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to move this into a package of its own
            self.rounded = dynamic.Linear.from_float(exact)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map of rounded inputs."""
        return self.rounded(x)


def use_int8(model: WorldModel) -> None:
    """Let the linear layers of the transformer multiply in int8, for good; elsewhere it gains nothing."""
    for parent in list(model.predictor.transformer.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                setattr(parent, name, Int8Linear(layer))
