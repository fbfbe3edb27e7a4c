//! The sample that the program's `quickstart` works on.

/// A Swin trained on CIFAR-10 (0.93 M parameters) with its configuration, 256 training and 1,000 validation
/// images in the zip layout, and the names of the classes: file name and content.
pub const SAMPLE: [(&str, &[u8]); 7] = [
    ("model.safetensors", include_bytes!("../samples/swin_micro_cifar10/model.safetensors")),
    ("cfg.yaml", include_bytes!("../samples/swin_micro_cifar10/cfg.yaml")),
    ("train.zip", include_bytes!("../samples/cifar10/train.zip")),
    ("train_map.txt", include_bytes!("../samples/cifar10/train_map.txt")),
    ("val.zip", include_bytes!("../samples/cifar10/val.zip")),
    ("val_map.txt", include_bytes!("../samples/cifar10/val_map.txt")),
    ("classes.txt", include_bytes!("../samples/cifar10/classes.txt")),
];
