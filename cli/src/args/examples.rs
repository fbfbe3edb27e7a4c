//! Examples at the end of each command's help. A test parses all of them.

pub const SWINQ: &str = "\
Examples:
  swinq quickstart
  swinq calibrate swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet \\
      -o swin_t.int8.safetensors
  swinq eval swin_t.pth swin_t.int8.safetensors --cfg swin_tiny_patch4_window7_224 \\
      --data-path imagenet --report report.html
  swinq predict swin_t.int8.safetensors cat.jpg

`swinq COMMAND --help` explains the options of a command, with examples.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 and 4 a goal that is missed (tune, compare),
130 after Ctrl-C, 143 after SIGTERM.";

pub const CALIBRATE: &str = "\
Examples:
  swinq calibrate swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet \\
      -o swin_t.int8.safetensors
  swinq calibrate hf-swin-folder --data-path photos.txt --recipe mode1 -o mode1.safetensors
  swinq calibrate swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet \\
      --disable '**.fc2.*' --calibrator percentile:99.9 -o mine.safetensors
  swinq calibrate swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet \\
      --batches 128 --shard 2/8 -o calibration.2.part";

pub const QAT: &str = "\
Examples:
  swinq qat default --opts model swin_t.int8.safetensors float swin_t.pth \\
      cfg swin_tiny_patch4_window7_224 data.path imagenet output run1
  swinq qat job.yaml --dry-run
  swinq qat job.yaml --resume";

pub const EVAL: &str = "\
Examples:
  swinq eval swin_t.pth swin_t.int8.safetensors --cfg swin_tiny_patch4_window7_224 \\
      --data-path imagenet --name A=float --name B=int8 --report report.html
  swinq eval swin_t.int8.safetensors --data-path imagenet --limit 1000 --json - | jq .models
  swinq eval swin_t.int8.safetensors --data-path imagenet --predictions predictions.csv
  swinq eval swin_t.int8.safetensors --data-path imagenet --shard 2/8 -o evaluation.2.part
  swinq eval mask_rcnn_swin-t.pth backbone.int8.safetensors --task features --data-path photos \\
      --size short:800,long:1333 --report report.html";

pub const MERGE: &str = "\
Examples:
  swinq merge calibration.*.part -o swin_t.int8.safetensors
  swinq merge evaluation.*.part -o results.json --report report.html

The result equals that of one run without --shard, bit for bit, but for latency and times.";

pub const BENCH: &str = "\
Examples:
  swinq bench swin_t.int8.safetensors --batch-size 1,8 --profile
  swinq bench swin_t.int8.safetensors --batch-size 1 --size 224x224,448x672
  swinq bench --random-weights 0 --cfg swin_base_patch4_window7_224 --seconds 1
  swinq bench gemm --m 3136 --n 384 --k 96";

pub const SENSITIVITY: &str = "\
Examples:
  swinq sensitivity swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet \\
      -o sensitivity.json
  swinq sensitivity swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet \\
      --recipe mode1 --images 256 -o mode1.json

A run that was interrupted continues if it is started again with the same arguments.";

pub const TUNE: &str = "\
Examples:
  swinq tune swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet --max-drop 0.2 \\
      -o tuned.safetensors
  swinq tune swin_t.pth --cfg swin_tiny_patch4_window7_224 --data-path imagenet --recipe mode1 \\
      --images 4000 --min-speedup 2 --budget 30 -o tuned.safetensors
  swinq tune mask_rcnn_swin-t.pth --task features --data-path photos --size 512x640 \\
      --sqnr-of stage3,stage4 --min-sqnr 38 -o tuned.safetensors

A run that was interrupted continues if it is started again with the same arguments.

Of the images, every second one is searched on: recipes are compared on them. The others verify the
chosen recipe. The exit code is 0 if the goal holds, and also if it is \"not concluded\": the search
reached the goal, but the verification images are too few to prove or to refute it, and the message
says about how many would. It is 3 if the goal is not reached, or is refuted by the verification.";

pub const PREDICT: &str = "\
Examples:
  swinq predict swin_t.int8.safetensors cat.jpg dog.webp photos/
  swinq predict swin_t.int8.safetensors - --json < paths.txt
  swinq predict swin_t.pth cat.jpg --cfg swin_tiny_patch4_window7_224 --topk 1 --json";

pub const FEATURES: &str = "\
Examples:
  swinq features backbone.int8.safetensors street.jpg photos/ --features maps.safetensors
  swinq features backbone.int8.safetensors - --features maps.safetensors \\
      --size short:800,long:1333 --pad-to 32 < paths.txt
  swinq features swin_t.pth cat.jpg --cfg swin_tiny_patch4_window7_224 --size 800x1344 \\
      --features maps.safetensors

Images are numbered in the order given, those of a folder in the order of their names. An image
that cannot be read, or that is too large, keeps its number and has no tensors.";

pub const EXPORT: &str = "\
Examples:
  swinq export swin_t.int8.safetensors --onnx swin_t.onnx
  swinq export swin_t.int8.safetensors --onnx swin_t.onnx --target openvino --batch 1
  swinq export swin_t.pth --cfg swin_tiny_patch4_window7_224 --onnx swin_t.onnx --input pixels
  swinq export backbone.int8.safetensors --size 800x1344 --onnx backbone.onnx
  swinq export backbone.int8.safetensors --size any --onnx backbone.onnx";

pub const INSPECT: &str = "\
Examples:
  swinq inspect swin_t.int8.safetensors
  swinq inspect swin_t.int8.safetensors --sites --plan --backend cpu
  swinq inspect swin_t.int8.safetensors --json | jq .recipe";

pub const COMPARE: &str = "\
Examples:
  swinq compare before.json after.json
  swinq compare before.json after.json --max-drop 0.2 --max-slowdown 5

The exit code is 4 if a limit is exceeded, and 1 if the two runs have nothing in common, or if a
figure with a limit cannot be compared.";

pub const DOCTOR: &str = "\
Examples:
  swinq doctor
  swinq doctor --json";

pub const QUICKSTART: &str = "\
Examples:
  swinq quickstart --out /tmp/swinq";

pub const COMPLETIONS: &str = "\
Examples:
  swinq completions bash > ~/.local/share/bash-completion/completions/swinq
  swinq completions zsh > ~/.zfunc/_swinq
  swinq completions fish > ~/.config/fish/completions/swinq.fish";

pub const MAN: &str = "\
Examples:
  swinq man | man -l -
  swinq man ~/.local/share/man/man1";
