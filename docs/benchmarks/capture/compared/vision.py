"""Families of timm, and torchvision's models, built without weights, nothing dropped."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.zoo.case import Arguments, Case

# A small member of each family, quick ones first.
TIMM = (
    "convit_tiny", "convnext_atto", "convnextv2_atto", "cs3darknet_s", "cspresnet50", "densenet121", "dla34",
    "edgenext_xx_small", "efficientformer_l1", "efficientformerv2_s0", "efficientnet_b0", "efficientvit_b0",
    "efficientvit_m0", "ese_vovnet19b_slim_dw", "fastvit_t8", "fbnetc_100", "gernet_s", "ghostnet_050",
    "hardcorenas_a", "hgnetv2_b0", "inception_next_atto", "lcnet_035", "levit_128s", "mixnet_s", "mnasnet_small",
    "mobilenetv2_035", "mobilenetv3_small_050", "mobilenetv4_conv_small_035", "mobileone_s0", "mobilevit_xxs",
    "mobilevitv2_050", "nf_resnet26", "poolformer_s12", "rdnet_tiny", "regnetx_002", "regnety_002",
    "repghostnet_050", "repvit_m0_9", "res2net50_14w_8s", "resnet18", "resnetv2_18", "rexnetr_200", "selecsls42",
    "sequencer2d_s", "seresnet18", "shvit_s1", "skresnet18", "starnet_s1", "tinynet_e", "bat_resnext26ts",
    "botnet26t_256", "cait_xxs24_224", "coat_lite_tiny", "coatnet_nano_rw_224", "crossvit_tiny_240", "davit_tiny",
    "deit_tiny_patch16_224", "dpn48b", "eva02_tiny_patch14_224", "focalnet_tiny_srf", "gcvit_xxtiny",
    "gmixer_24_224", "gmlp_ti16_224", "hiera_tiny_224", "hrnet_w18_small", "inception_v3", "lambda_resnet26t",
    "maxvit_rmlp_pico_rw_256", "mixer_s32_224", "mvitv2_tiny", "nest_tiny", "nextvit_small", "pit_ti_224",
    "pvt_v2_b0", "repvgg_a0", "resmlp_12_224", "resnest14d", "resnext26ts", "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256", "tiny_vit_5m_224", "tnt_s_legacy_patch16_224", "twins_pcpvt_small", "vgg11",
    "visformer_tiny", "vit_tiny_patch16_224", "xception41", "xcit_nano_12_p16_224",
)  # fmt: skip

# These take images of their own size only, though they do not say so.
NATIVE = {"bat_resnext26ts", "botnet26t_256", "lambda_resnet26t", "nest_tiny", "davit_tiny", "gcvit_xxtiny"}

CLASSIFICATION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18",
    "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "swin_v2_t", "vgg11", "vit_b_32",
)  # fmt: skip
SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large")
DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large",
)  # fmt: skip


def images(size: int) -> Callable[[int], Arguments]:
    return lambda batch: ((torch.randn(batch, 3, size, size),), {})


def pictures(batch: int) -> Arguments:
    """Return a list of images and what is in each, as detectors take them in training."""
    targets = []
    for _ in range(batch):
        masks = torch.zeros(1, 96, 96, dtype=torch.uint8)
        masks[:, 20:60, 20:60] = 1
        targets.append({
            "boxes": torch.tensor([[20.0, 20.0, 60.0, 60.0]]), "labels": torch.tensor([1]), "masks": masks,
            "keypoints": torch.tensor([[[30.0, 30.0, 1.0]] * 17]),
        })  # fmt: skip
    return ([torch.rand(3, 96, 96) for _ in range(batch)], targets), {}


def still(model: nn.Module) -> nn.Module:
    """Return ``model`` with every probability of dropping something at 0."""
    for module in model.modules():
        for name in ("p", "drop_prob", "drop_rate"):
            if isinstance(getattr(module, name, None), float) and "rop" in type(module).__name__ + name:
                setattr(module, name, 0.0)
    return model


def timm_cases() -> tuple[Case, ...]:
    import timm

    def case(name: str) -> Case:
        native = timm.models.get_pretrained_cfg(name)
        return Case(
            name=name,
            family="timm",
            build=lambda: still(timm.create_model(name, pretrained=False, num_classes=10)),
            draw=images(max(native.input_size[1:]) if native.fixed_input_size or name in NATIVE else 96),
        )

    return tuple(case(name) for name in TIMM if timm.is_model(name))


def torchvision_cases() -> tuple[Case, ...]:
    from torchvision import models

    def case(name: str, family: str, build: Callable[..., Any], draw: Callable[[int], Arguments], **opts: Any) -> Case:
        return Case(
            name=name, family=f"torchvision {family}", build=lambda: still(build(weights=None, **opts)), draw=draw
        )

    sizes = {"inception_v3": 299, "maxvit_t": 224, "swin_t": 64, "swin_v2_t": 64, "vit_b_32": 224}
    alone = {"weights_backbone": None}
    # Detectors enlarge their images to 800 pixels by default, which takes minutes a model on a CPU.
    small = {name: {"min_size": 96, "max_size": 128} for name in DETECTION if "resnet50" in name}
    return (
        *(case(name, "classification", getattr(models, name), images(sizes.get(name, 96))) for name in CLASSIFICATION),
        *(case(name, "segmentation", getattr(models.segmentation, name), images(64), **alone) for name in SEGMENTATION),
        *(
            case(name, "detection", getattr(models.detection, name), pictures, **alone, **small.get(name, {}))
            for name in DETECTION
        ),
    )
