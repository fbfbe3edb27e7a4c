// The C interface of swinq: INT8 for Swin Transformers.
//
// Status. A function that can fail returns a status, and swinq_last_error says what was wrong. No panic of the library and
// no exception crosses the border.
// Handles. Models and engines are handles. A NULL, freed or wrong handle is an error code, never a crash.
// Memory. All memory that the caller passes stays the caller's, and is used during the call only; memory of a GPU until the work on
// the stream is done. Strings are UTF-8.
// Every other pointer must be NULL, which is an error where its description does not allow it, or valid.
// Threads. Every function may be called from any thread.
// Versions. Within a major version, functions stay as they are, and structures and status codes only grow at their ends; a
// structure states its size in its first field. While the major version is 0, SWINQ_ABI_VERSION is 0 and may break.
//
// Written by cbindgen (cbindgen.toml); do not edit.


#ifndef SWINQ_H
#define SWINQ_H

#include <stddef.h>
#include <stdint.h>

// Version of this interface. It changes with each change that breaks a program, as the major version of the library does.
#define SWINQ_ABI_VERSION 0

// `backend`: the GPU if one can be used, else the CPU.
#define SWINQ_BACKEND_AUTO 0

// `backend`: the CPU.
#define SWINQ_BACKEND_CPU 1

// `backend`: the GPU; an error if none can be used.
#define SWINQ_BACKEND_CUDA 2

// `type`: bytes, 0 to 255. Other numbers are those of types that this version does not have.
#define SWINQ_TYPE_U8 1

// `type`: `float`.
#define SWINQ_TYPE_F32 2

// `type`: half precision, IEEE 754 binary16, as `_Float16`.
#define SWINQ_TYPE_F16 3

// `type`: bfloat16, the upper half of a `float`. Only in memory of a GPU.
#define SWINQ_TYPE_BF16 4

// `layout`: rows of numbers, `[images, columns]` or `[images, rows, columns]`.
#define SWINQ_LAYOUT_ROWS 1

// `layout`: images whose channels lie side by side, `[images, height, width, channels]`.
#define SWINQ_LAYOUT_NHWC 2

// `layout`: images or feature maps, channel by channel, `[images, channels, height, width]`.
#define SWINQ_LAYOUT_NCHW 3

// `device_type`: memory of the host.
#define SWINQ_DEVICE_HOST 0

// `device_type`: memory of an NVIDIA GPU.
#define SWINQ_DEVICE_CUDA 1

// The result of a call.
typedef enum swinq_status {
  // The call succeeded.
  SWINQ_STATUS_OK = 0,
  // A pointer that must not be null is null.
  SWINQ_STATUS_NULL = 1,
  // A handle is not that of a live object of its kind.
  SWINQ_STATUS_HANDLE = 2,
  // An argument has a value or a size that the call cannot work with.
  SWINQ_STATUS_ARGUMENT = 3,
  // A file does not exist, or cannot be read or written.
  SWINQ_STATUS_FILE = 4,
  // A model, its configuration or its recipe cannot be used.
  SWINQ_STATUS_MODEL = 5,
  // An image or a data set cannot be used.
  SWINQ_STATUS_DATA = 6,
  // An engine cannot be made, or failed.
  SWINQ_STATUS_ENGINE = 7,
  // A calibration failed.
  SWINQ_STATUS_CALIBRATION = 8,
  // A callback stopped the call.
  SWINQ_STATUS_STOPPED = 9,
  // The library has an error of its own.
  SWINQ_STATUS_INTERNAL = 10,
} swinq_status;

// A model that is ready to run, with threads and buffers of its own. Threads may share it; on a CPU their calls run at the
// same time on the engine's threads, on a GPU those with images in host memory one after another. Engines of one model share
// its packed weights.
typedef struct swinq_engine swinq_engine;

// A model, float or quantized. Threads may share it.
typedef struct swinq_model swinq_model;

// How a model is opened. Set every field to zero and `size` to `sizeof(swinq_open_options)` for the defaults.
typedef struct swinq_open_options {
  // Size of this structure.
  size_t size;
  // Configuration of a bare float checkpoint: a shipped name, or a YAML file. NULL for a quantized checkpoint and for
  // a directory.
  const char *cfg;
  // File of class names, one per line; NULL for those of the model.
  const char *labels;
  // Whether images are turned as EXIF in their files states: `exif` or `stored`; NULL for the rule of the library that reads
  // such a checkpoint, or of a quantized checkpoint.
  const char *orientation;
  // Order of the three channels before the network: `rgb` or `bgr`; NULL for `rgb`, or that of a quantized checkpoint.
  const char *channels;
  // Naming convention of the tensors of a float checkpoint: `microsoft`, `timm`, `hf`, `torchvision`, `openmmlab`, `old-timm` or
  // `ft`; NULL detects it. It chooses between two namings of a network under one prefix.
  const char *dialect;
  // The beginning of the names of the network's tensors, such as `model.`, if a float checkpoint has other tensors too; NULL
  // leaves out a beginning that all names have.
  const char *prefix;
  // The key of the state dictionary in a file of `torch.save` that has several, such as `state_dict_ema`; NULL takes an average
  // of the weights if there is one.
  const char *weights;
} swinq_open_options;

// How a model is quantized. Set every field to zero and `size` to `sizeof(swinq_quantize_options)` for the defaults.
typedef struct swinq_quantize_options {
  // Size of this structure.
  size_t size;
  // `default`, `mode1`, `mode2`, or a YAML file; NULL is `default`.
  const char *recipe;
  // Number of images of the data set that are used; 0 is 128.
  size_t images;
  // Seed of the sample of images.
  uint64_t seed;
  // Images per batch; 0 is 8.
  size_t batch_size;
  // Called with the numbers of images or layers done and of all, on the thread of the call; may be NULL. A result
  // other than 0 stops the calibration with `SWINQ_STATUS_STOPPED`. It must return: no exception and no `longjmp`
  // may leave it.
  int (*progress)(void *user, size_t done, size_t total);
  // The first argument of `progress`.
  void *user;
} swinq_quantize_options;

// Facts about a model. Set `size` to `sizeof(swinq_model_info)` before the call.
typedef struct swinq_model_info {
  // Size of this structure.
  size_t size;
  // Height of the images in pixels.
  size_t height;
  // Width of the images in pixels.
  size_t width;
  // Channels of the images.
  size_t channels;
  // Number of classes.
  size_t classes;
  // 1 if any site is quantized, 0 for a float model.
  uint32_t quantized;
  // 1 if the classes have names.
  uint32_t labelled;
} swinq_model_info;

// How an engine is made. Set every field to zero and `size` to `sizeof(swinq_engine_options)` for the defaults.
typedef struct swinq_engine_options {
  // Size of this structure.
  size_t size;
  // `SWINQ_BACKEND_AUTO`, `SWINQ_BACKEND_CPU` or `SWINQ_BACKEND_CUDA`.
  uint32_t backend;
  // Ordinal of the GPU.
  uint32_t device;
  // Threads of the CPU engine, including the caller's; 0 is one per core.
  size_t threads;
  // Images that run at a time, on a CPU at most 2 on each thread; larger batches are split. 0 is 8.
  size_t max_batch;
  // 1 for an f32 residual stream on a GPU, which gives the CPU's bits; 0 for f16, or f32 if f16 does not hold the stream.
  uint32_t residual_f32;
  // Must be 0.
  uint32_t reserved;
  // The most pixels, height times width, of an image. 0 is as many as half of the free memory holds. Images of the model's
  // own size, and smaller ones, are always accepted.
  size_t max_pixels;
  // Threads of the CPU engine that work on one image; 0 is as many as make it faster.
  size_t image_threads;
  // The most bytes for the tensors of images of one size, which the CPU engine runs side by side; 0 is a quarter of the
  // machine's memory.
  size_t max_memory;
  // The most streams of a GPU on which the engine runs at the same time, each with memory of its own; a recorded graph counts
  // as one as long as it lives. 0 is 4.
  size_t max_streams;
} swinq_engine_options;

// An array of the caller. Set every field to zero first, and `size` to `sizeof(swinq_tensor)`.
typedef struct swinq_tensor {
  // Size of this structure: also the distance of the elements of an array of tensors, which all have the same.
  size_t size;
  // Name of the input (`pixels`) or output (`swinq_engine_get_output`). NULL is the only one.
  const char *name;
  // The first element, aligned as its type needs it.
  void *data;
  // Type of the elements, such as `SWINQ_TYPE_U8`.
  uint32_t type;
  // Order and meaning of the dimensions, such as `SWINQ_LAYOUT_NHWC`.
  uint32_t layout;
  // Number of dimensions.
  size_t rank;
  // Elements along each dimension, slowest first. Only the first `rank` count.
  size_t shape[4];
  // Distance of neighbours along each dimension, in elements. All zero: the array is dense, which it must be in this
  // version. Along a dimension of one element any distance is dense.
  ptrdiff_t strides[4];
  // Memory in which the array lies: `SWINQ_DEVICE_HOST` or `SWINQ_DEVICE_CUDA`.
  uint32_t device_type;
  // Ordinal of the GPU, that of the engine; 0 for the host.
  uint32_t device;
} swinq_tensor;

// How an engine runs. Set every field to zero and `size` to `sizeof(swinq_run_options)` for the defaults.
typedef struct swinq_run_options {
  // Size of this structure.
  size_t size;
  // For tensors in memory of a GPU: the `cudaStream_t` on which the engine runs; NULL is the default stream. Must be NULL for
  // tensors in the host's memory.
  void *stream;
  // Must be 0.
  size_t reserved;
} swinq_run_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of the interface of the library that runs. Compare it with `SWINQ_ABI_VERSION` of the header.
uint32_t swinq_abi_version(void);

// Version of the library, such as `"0.1.0"`. The string is static.
const char *swinq_version(void);

// What was wrong with the last call of this thread, in UTF-8; empty if it succeeded. The string belongs to the library
// and is valid until the thread's next call.
const char *swinq_last_error(void);

// Opens the model at `path` (UTF-8): a quantized or float checkpoint, or a Hugging Face or timm directory. `options`
// may be NULL. Writes a handle to `model`, which the caller frees with `swinq_model_free`.
enum swinq_status swinq_model_open(const char *path,
                                   const struct swinq_open_options *options,
                                   struct swinq_model **model);

// Quantizes a float model: finds the ranges of its activations on images of the training part of the data set at
// `data_path`, which may be an ImageFolder, a Swin zip folder, a list file or a folder of images. `options` may be NULL.
// Writes a handle of the new model to `quantized`.
enum swinq_status swinq_model_quantize(const struct swinq_model *model,
                                       const char *data_path,
                                       const struct swinq_quantize_options *options,
                                       struct swinq_model **quantized);

// Writes the model to a checkpoint at `path` (UTF-8), completely or not at all.
enum swinq_status swinq_model_save(const struct swinq_model *model, const char *path);

// Writes facts about the model to `info`, as many as `info->size` has room for.
enum swinq_status swinq_model_get_info(const struct swinq_model *model,
                                       struct swinq_model_info *info);

// Writes the name of a class (UTF-8, with a zero byte at its end) to the `capacity` bytes at `name`. Fails with
// `SWINQ_STATUS_ARGUMENT` if the model has no such name, or if it does not fit.
enum swinq_status swinq_model_get_label(const struct swinq_model *model,
                                        size_t class_index,
                                        char *name,
                                        size_t capacity);

// Frees a model. Engines of the model stay usable. NULL is allowed, and a handle that was freed is an error.
enum swinq_status swinq_model_free(struct swinq_model *model);

// Brings a decoded image, `rgb` of `height * width * 3` bytes, to the model's input: writes an image of the height, the width
// and the channels that `swinq_model_get_info` states to `pixels`, whose size is `capacity`. Models take one or three
// channels; three have the order of the model. The bytes equal Pillow's.
enum swinq_status swinq_preprocess(const struct swinq_model *model,
                                   const uint8_t *rgb,
                                   size_t width,
                                   size_t height,
                                   uint8_t *pixels,
                                   size_t capacity);

// Decodes the image file in the `length` bytes at `file` (JPEG, PNG, WebP, BMP, TIFF, PNM), turns it by the model's rule for
// EXIF, and brings it to the model's input as `swinq_preprocess` does.
enum swinq_status swinq_decode(const struct swinq_model *model,
                               const uint8_t *file,
                               size_t length,
                               uint8_t *pixels,
                               size_t capacity);

// Prepares the model to run. `options` may be NULL. Writes a handle to `engine`, which the caller frees with
// `swinq_engine_free`. The engine does not need the handle of the model.
enum swinq_status swinq_engine_new(const struct swinq_model *model,
                                   const struct swinq_engine_options *options,
                                   struct swinq_engine **engine);

// Writes the number of outputs of the engine to `count`.
enum swinq_status swinq_engine_get_output_count(const struct swinq_engine *engine, size_t *count);

// Describes output `index` for one image of `height` and `width`: writes its name, type, layout, rank and shape to `output`,
// as many fields as `output->size` has room for. The layout of a feature map is `SWINQ_LAYOUT_NCHW`; it may be asked for in
// `SWINQ_LAYOUT_NHWC` or, `[images, tokens, channels]`, in `SWINQ_LAYOUT_ROWS`. The name is valid until the engine is freed.
// `shape[0]` is the number of images, 1, and `data` is NULL; set both for `swinq_engine_run`. Fails with
// `SWINQ_STATUS_ARGUMENT` if the engine has no such output, or if the network cannot process such an image.
enum swinq_status swinq_engine_get_output(const struct swinq_engine *engine,
                                          size_t index,
                                          size_t height,
                                          size_t width,
                                          struct swinq_tensor *output);

// Frees an engine. A call that runs on another thread meanwhile completes. NULL is allowed, and a handle that was freed
// is an error.
enum swinq_status swinq_engine_free(struct swinq_engine *engine);

// Computes outputs of images. `inputs` is one tensor, `SWINQ_LAYOUT_NHWC`, `[images, height, width, channels]`, or
// `SWINQ_LAYOUT_NCHW`, `[images, channels, height, width]`: any number of images of any height and width that the network can
// process. `SWINQ_TYPE_U8` are 8-bit pixels, resized but not normalised; `SWINQ_TYPE_F32` and `SWINQ_TYPE_F16` are values that
// the caller has normalised, which must be finite. `outputs` has the tensors to write, each output at most once, as
// `swinq_engine_get_output` describes them for that height and width, with the number of images in `shape[0]`, in
// `SWINQ_TYPE_F32` or `SWINQ_TYPE_F16`. They must not overlap each other or the images. `options` may be NULL. Images that the
// network cannot process, or that need more memory than `max_pixels` allows, are `SWINQ_STATUS_ARGUMENT`. After the first call
// for a height, a width and a number of images it allocates nothing on a CPU, as long as the size is among those used last.
//
// On a GPU all tensors may lie in its memory (`SWINQ_DEVICE_CUDA`), in `SWINQ_TYPE_BF16` too. The work is then put on
// `options->stream` after what is there, and the call returns without waiting for it: the memory must stay valid until it is
// done. Streams run at the same time, as many as `max_streams`. While the caller records a graph on the stream
// (`cudaStreamBeginCapture`), the work becomes a part of it; the height, width and number of images must be prepared
// (`swinq_engine_prepare`). A value that is not finite makes all outputs NaN, and is an error of the next call on the engine, or
// of `swinq_engine_check`.
enum swinq_status swinq_engine_run(const struct swinq_engine *engine,
                                   const struct swinq_tensor *inputs,
                                   size_t input_count,
                                   const struct swinq_tensor *outputs,
                                   size_t output_count,
                                   const struct swinq_run_options *options);

// Prepares for `images` images of `height` and `width` on `stream`, a `cudaStream_t` of the engine's GPU; NULL is the default
// stream. Otherwise the first call of `swinq_engine_run` on the stream prepares, which takes far longer than later calls, and
// cannot while a graph is recorded. Fails with `SWINQ_STATUS_ARGUMENT` for an engine on a CPU.
enum swinq_status swinq_engine_prepare(const struct swinq_engine *engine,
                                       size_t height,
                                       size_t width,
                                       size_t images,
                                       void *stream);

// Fails with `SWINQ_STATUS_ENGINE` if an earlier call of `swinq_engine_run` with memory of a GPU, or a graph that holds one, met a
// value that is not finite; `swinq_last_error` names it. It does not wait: synchronize the stream first. An error is told once.
enum swinq_status swinq_engine_check(const struct swinq_engine *engine);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SWINQ_H */
