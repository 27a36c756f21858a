"""The architectures of `benchmarks.models`: how each is made with random weights, and what it takes.

Nothing is fetched: torchvision and timm make their models by name without weights, transformers by
configurations of real widths and few layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

Suite: TypeAlias = Literal["torchvision", "timm", "transformers"]

TOKENS = 512
"""Length of a text, where the architecture takes as long a one."""


@dataclass(frozen=True, slots=True)
class ModelCase:
    """`model()` makes it on the current default device; `inputs(batch)` what its forward takes, in f32 where it
    is no whole number."""

    name: str
    suite: Suite
    model: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]


class FirstResult(nn.Module):
    """A model of transformers that gives its first result alone, without caches."""

    def __init__(self, model: nn.Module, keywords: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.keywords = model, dict(keywords)

    def forward(self, *inputs: Tensor) -> Tensor:
        result: Tensor = self.model(*inputs, return_dict=False, **self.keywords)[0]
        return result


def images(batch: int, side: int = 224) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, side, side),)


def tokens(batch: int, vocabulary: int = 1000, length: int = TOKENS) -> tuple[Tensor, ...]:
    return (torch.randint(2, vocabulary, (batch, length)),)


def spectrum(batch: int, bins: int = 80, frames: int = 3000) -> tuple[Tensor, ...]:
    return (torch.randn(batch, bins, frames),)


def waveform(batch: int, samples: int = 16000) -> tuple[Tensor, ...]:
    return (torch.randn(batch, samples),)


# --- torchvision and timm ------------------------------------------------------------------


def _torchvision(name: str) -> nn.Module:
    import torchvision

    aside = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = torchvision.models.get_model(name, weights=None, **aside)
    return model


def _timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False)
    return model


TORCHVISION = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet1_0",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "regnet_y_400mf",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg16",
    "vit_b_16",
    "wide_resnet50_2",
)

TIMM = (
    "beit_base_patch16_224",
    "cait_xxs24_224",
    "coatnet_0_rw_224",
    "convmixer_768_32",
    "deit_small_patch16_224",
    "edgenext_small",
    "efficientformer_l1",
    "eva02_tiny_patch14_224",
    "fastvit_t8",
    "ghostnet_100",
    "gmlp_s16_224",
    "hrnet_w18_small",
    "inception_next_tiny",
    "levit_128",
    "mixer_b16_224",
    "mobilevit_s",
    "poolformer_s12",
    "pvt_v2_b1",
    "repvgg_a2",
    "res2net50_26w_4s",
    "resmlp_12_224",
    "rexnet_100",
    "seresnet50",
    "twins_pcpvt_small",
    "visformer_small",
    "vit_small_patch16_224",
    "xcit_tiny_12_p16_224",
)

SIDES: Mapping[str, int] = MappingProxyType(
    {"inception_v3": 299, "swin_v2_t": 256, "fastvit_t8": 256, "efficientnet_v2_s": 384}
)
"""Of images that are not 224 x 224."""


# --- transformers ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model of transformers: the names of its configuration and its class, with a part of it behind a dot,
    what the configuration says, and the keywords of its forward."""

    config: str
    model: str
    fields: Mapping[str, Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[int], tuple[Tensor, ...]] = tokens


def _text(case: TextModel) -> nn.Module:
    import transformers

    config = getattr(transformers, case.config)(**case.fields)
    name, _, part = case.model.partition(".")
    model = getattr(transformers, name)(config)
    return FirstResult(getattr(model, part) if part else model, case.keywords)


def _encoder(width: int = 768, layers: int = 6, **more: Any) -> dict[str, Any]:
    own = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
        "vocab_size": 30522,
        "max_position_embeddings": TOKENS + 2,
    }
    return own | more


def _decoder(
    width: int = 2048, layers: int = 4, heads: int = 16, shared: int = 4, **more: Any
) -> dict[str, Any]:
    own = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // shared,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    }
    return own | more


_NO_CACHE = {"use_cache": False}

TRANSFORMERS: Mapping[str, TextModel] = MappingProxyType(
    {
        "albert": TextModel("AlbertConfig", "AlbertModel", _encoder(embedding_size=128)),
        "bart": TextModel(
            "BartConfig",
            "BartModel",
            {
                "d_model": 768,
                "encoder_layers": 3,
                "decoder_layers": 3,
                "encoder_attention_heads": 12,
                "decoder_attention_heads": 12,
                "encoder_ffn_dim": 3072,
                "decoder_ffn_dim": 3072,
            },
            _NO_CACHE,
        ),
        "bert": TextModel("BertConfig", "BertModel", _encoder()),
        "bloom": TextModel(
            "BloomConfig",
            "BloomModel",
            {"hidden_size": 1024, "n_layer": 4, "n_head": 16, "vocab_size": 32000},
            _NO_CACHE,
        ),
        "clip_text": TextModel(
            "CLIPTextConfig",
            "CLIPTextModel",
            {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048},
            inputs=partial(tokens, length=77),
        ),
        "clip_vision": TextModel(
            "CLIPVisionConfig", "CLIPVisionModel", {"num_hidden_layers": 6}, inputs=images
        ),
        "deberta_v2": TextModel(
            "DebertaV2Config",
            "DebertaV2Model",
            _encoder(
                layers=4,
                relative_attention=True,
                pos_att_type=["c2p", "p2c"],
                position_buckets=256,
                norm_rel_ebd="layer_norm",
                share_att_key=True,
            ),
        ),
        "dinov2": TextModel("Dinov2Config", "Dinov2Model", {"num_hidden_layers": 6}, inputs=images),
        "distilbert": TextModel(
            "DistilBertConfig",
            "DistilBertModel",
            {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072},
        ),
        "electra": TextModel("ElectraConfig", "ElectraModel", _encoder()),
        "falcon": TextModel(
            "FalconConfig",
            "FalconModel",
            {"hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32, "vocab_size": 32000},
            _NO_CACHE,
        ),
        "gemma": TextModel("GemmaConfig", "GemmaModel", _decoder(heads=8, shared=8, head_dim=256), _NO_CACHE),
        "gemma2": TextModel(
            "Gemma2Config", "Gemma2Model", _decoder(heads=8, shared=2, head_dim=256), _NO_CACHE
        ),
        "gpt2": TextModel("GPT2Config", "GPT2Model", {"n_layer": 6}, _NO_CACHE),
        "gpt_neox": TextModel(
            "GPTNeoXConfig",
            "GPTNeoXModel",
            {
                "hidden_size": 1024,
                "num_hidden_layers": 6,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
                "vocab_size": 32000,
            },
            _NO_CACHE,
        ),
        "llama": TextModel("LlamaConfig", "LlamaModel", _decoder(), _NO_CACHE),
        "mamba": TextModel(
            "MambaConfig",
            "MambaModel",
            {"hidden_size": 768, "num_hidden_layers": 2, "vocab_size": 32000},
            _NO_CACHE,
            partial(tokens, length=64),
        ),
        "mistral": TextModel("MistralConfig", "MistralModel", _decoder(sliding_window=256), _NO_CACHE),
        "mixtral": TextModel(
            "MixtralConfig",
            "MixtralModel",
            _decoder(
                width=1024,
                layers=2,
                intermediate_size=2048,
                num_local_experts=8,
                num_experts_per_tok=2,
                sliding_window=None,
            ),
            _NO_CACHE,
        ),
        "olmo2": TextModel("Olmo2Config", "Olmo2Model", _decoder(), _NO_CACHE),
        "opt": TextModel(
            "OPTConfig",
            "OPTModel",
            {
                "hidden_size": 1024,
                "num_hidden_layers": 6,
                "num_attention_heads": 16,
                "ffn_dim": 4096,
                "word_embed_proj_dim": 1024,
                "vocab_size": 32000,
            },
            _NO_CACHE,
        ),
        "phi": TextModel("PhiConfig", "PhiModel", _decoder(shared=1), _NO_CACHE),
        "phi3": TextModel("Phi3Config", "Phi3Model", _decoder(shared=2, pad_token_id=0), _NO_CACHE),
        "qwen2": TextModel("Qwen2Config", "Qwen2Model", _decoder(), _NO_CACHE),
        "qwen3": TextModel("Qwen3Config", "Qwen3Model", _decoder(head_dim=128), _NO_CACHE),
        "roberta": TextModel("RobertaConfig", "RobertaModel", _encoder(max_position_embeddings=TOKENS + 4)),
        "stablelm": TextModel("StableLmConfig", "StableLmModel", _decoder(), _NO_CACHE),
        "starcoder2": TextModel(
            "Starcoder2Config", "Starcoder2Model", _decoder(sliding_window=None), _NO_CACHE
        ),
        "t5_encoder": TextModel(
            "T5Config",
            "T5EncoderModel",
            {"d_model": 768, "d_kv": 64, "num_heads": 12, "d_ff": 3072, "num_layers": 6},
        ),
        "wav2vec2": TextModel("Wav2Vec2Config", "Wav2Vec2Model", {"num_hidden_layers": 6}, inputs=waveform),
        "vit": TextModel("ViTConfig", "ViTModel", {"num_hidden_layers": 6}, inputs=images),
        "whisper_encoder": TextModel(
            "WhisperConfig",
            "WhisperModel.encoder",
            {
                "d_model": 512,
                "encoder_layers": 6,
                "encoder_attention_heads": 8,
                "encoder_ffn_dim": 2048,
                "decoder_layers": 1,
                "decoder_attention_heads": 8,
            },
            inputs=spectrum,
        ),
    }
)


def _of_images(suite: Suite, make: Callable[[str], nn.Module], names: Iterable[str]) -> list[ModelCase]:
    return [
        ModelCase(name, suite, partial(make, name), partial(images, side=SIDES.get(name, 224)))
        for name in names
    ]


def _cases() -> tuple[ModelCase, ...]:
    torchvision = _of_images("torchvision", _torchvision, TORCHVISION)
    timm = _of_images("timm", _timm, TIMM)
    of_texts = [
        ModelCase(f"hf_{name}", "transformers", partial(_text, case), case.inputs)
        for name, case in TRANSFORMERS.items()
    ]
    return (*torchvision, *timm, *of_texts)


CASES: Mapping[str, ModelCase] = MappingProxyType({case.name: case for case in _cases()})


# --- weights ------------------------------------------------------------------------------------


def settled(model: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    """Returns the model in eval mode with weights that let every layer count: parameters that are constant,
    such as gates and biases of zero, are drawn, and batch norms have the statistics of these inputs."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.randn_like(parameter), alpha=0.02 if parameter.dim() > 1 else 0.1)
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if norms:
            before = [norm.momentum for norm in norms]
            for norm in norms:
                norm.train()
                norm.momentum = 1.0
            model(*inputs)
            for norm, momentum in zip(norms, before, strict=True):
                norm.eval()
                norm.momentum = momentum
    return model


def cast(model: nn.Module, element: torch.dtype) -> nn.Module:
    """Returns the model in an element type, in place, without the tables that its modules keep by device from one
    forward to the next, which `to` leaves in the type in which they were computed."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            tables = value.values() if isinstance(value, dict) and not name.startswith("_") else ()
            if tables and all(isinstance(table, Tensor) for table in tables):
                setattr(module, name, {})
    return model.to(element)
