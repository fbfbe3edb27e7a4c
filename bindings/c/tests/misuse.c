/* Misuse of every function: each call gives its error code, and the message names the argument. */

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <swinq.h>

static int failures = 0;

static void expect(int line, swinq_status found, swinq_status wanted, const char *text)
{
    if (found == wanted && strstr(swinq_last_error(), text) != NULL)
        return;
    fprintf(stderr, "line %d: status %d with `%s`, not %d with `%s`\n", line, (int)found, swinq_last_error(), (int)wanted, text);
    failures++;
}

#define EXPECT(call, wanted, text) expect(__LINE__, call, SWINQ_STATUS_##wanted, text)

static swinq_model *model;
static swinq_model_info info = {.size = sizeof info};
static uint8_t *pixels;
static size_t bytes;

/* Images of the model's own size. */
static swinq_tensor images_of(uint8_t *data)
{
    swinq_tensor tensor = {.size = sizeof tensor, .data = data, .type = SWINQ_TYPE_U8, .layout = SWINQ_LAYOUT_NHWC, .rank = 4};
    tensor.shape[0] = 1;
    tensor.shape[1] = info.height;
    tensor.shape[2] = info.width;
    tensor.shape[3] = info.channels;
    return tensor;
}

/* The logits of one image. */
static swinq_tensor logits_of(float *data)
{
    swinq_tensor tensor = {.size = sizeof tensor, .data = data, .type = SWINQ_TYPE_F32, .layout = SWINQ_LAYOUT_ROWS, .rank = 2};
    tensor.shape[0] = 1;
    tensor.shape[1] = info.classes;
    return tensor;
}

/* An engine of its own; returns the logits of `pixels`. */
static void *serve(void *unused)
{
    swinq_engine *engine = NULL;
    swinq_engine_options options = {.size = sizeof options, .backend = SWINQ_BACKEND_CPU, .threads = 1};
    float *logits = calloc(info.classes, sizeof *logits);
    swinq_tensor input = images_of(pixels), output = logits_of(logits);
    (void)unused;
    if (swinq_engine_new(model, &options, &engine) != SWINQ_STATUS_OK)
        return logits;
    for (int i = 0; i < 3; i++)
        swinq_engine_run(engine, &input, 1, &output, 1, NULL);
    swinq_engine_free(engine);
    return logits;
}

static int stop(void *user, size_t done, size_t total)
{
    (void)done;
    (void)total;
    ++*(int *)user;
    return 1;
}

/* Runs `engine` on two tensors that are right but for what `change` does to one of them. */
#define WITH(change, wanted, text)                                                                            \
    do {                                                                                                      \
        swinq_tensor input = images_of(pixels), output = logits_of(logits);                                   \
        change;                                                                                               \
        expect(__LINE__, swinq_engine_run(engine, &input, 1, &output, 1, NULL), SWINQ_STATUS_##wanted, text); \
    } while (0)

static void inputs(const swinq_engine *engine, float *logits)
{
    WITH(input.size = 0, ARGUMENT, "inputs[0]: its `size` is 0");
    WITH(input.size = sizeof input + 8, ARGUMENT, "inputs[0]: its `size`");
    /* A structure that ends before `shape` has no shape. */
    WITH(input.size = offsetof(swinq_tensor, shape), ARGUMENT, "has a zero");
    WITH(input.name = "pixels", OK, "");
    WITH(input.name = "image", ARGUMENT, "`image`; the only input is `pixels`");
    WITH(input.name = "\xff\xfe", ARGUMENT, "UTF-8");
    WITH(input.data = NULL, NULL, "inputs[0]");
    WITH(input.type = 0, ARGUMENT, "`type` is 0; it must be 1 (SWINQ_TYPE_U8), 2 (SWINQ_TYPE_F32) or 3 (SWINQ_TYPE_F16)");
    WITH(input.type = 4, ARGUMENT, "`type` is 4");
    WITH(input.layout = SWINQ_LAYOUT_ROWS, ARGUMENT, "`layout` is 1; it must be 2 (SWINQ_LAYOUT_NHWC) or 3 (SWINQ_LAYOUT_NCHW)");
    WITH(input.layout = SWINQ_LAYOUT_NCHW, ARGUMENT, "images of 3 channels");
    WITH(input.rank = 3, ARGUMENT, "`rank` is 3; it must be 4");
    WITH(input.rank = SIZE_MAX, ARGUMENT, "`rank`");
    for (int i = 0; i < 4; i++) {
        WITH(input.shape[i] = 0, ARGUMENT, "has a zero");
        WITH(input.shape[i] = SIZE_MAX, ARGUMENT, "inputs[0]: its `shape`");
    }
    WITH(input.shape[3] = 1, ARGUMENT, "images of 3 channels");
    WITH(input.strides[3] = 1, ARGUMENT, "not those of a dense array");
    WITH(input.strides[1] = -1, ARGUMENT, "not those of a dense array");
    WITH((input.strides[3] = 1, input.strides[2] = 3, input.strides[1] = 3 * (ptrdiff_t)info.width), OK, "");
    WITH((input.strides[3] = 1, input.strides[2] = 4, input.strides[1] = 4 * (ptrdiff_t)info.width), ARGUMENT, "dense");
    WITH(input.device_type = 2, ARGUMENT, "`device_type` is 2; it must be 0 (SWINQ_DEVICE_HOST)");
    WITH(input.device = 1, ARGUMENT, "`device` is 1");
    WITH(input.device_type = SWINQ_DEVICE_CUDA, ARGUMENT, "engine: runs on a CPU");
    EXPECT(swinq_engine_prepare(engine, 56, 56, 1, NULL), ARGUMENT, "engine: runs on a CPU");
    EXPECT(swinq_engine_check(engine), OK, "");
    /* Heights that the network cannot process. */
    WITH(input.shape[1] -= 1, ARGUMENT, "is not a multiple of PATCH_SIZE 4");
    WITH(input.shape[1] /= 2, ARGUMENT, "fewer than its window of 7");
}

/* Images of `float`, which are no 8-bit pixels. */
static void floats(const swinq_engine *engine, float *logits)
{
    float *values = calloc(bytes + 1, sizeof *values);
    WITH((input.type = SWINQ_TYPE_F32, input.data = values), OK, "");
    WITH((input.type = SWINQ_TYPE_F16, input.data = values), OK, "");
    WITH((input.type = SWINQ_TYPE_F32, input.data = (char *)values + 2), ARGUMENT, "inputs[0]: is not aligned to 4 bytes");
    WITH((input.type = SWINQ_TYPE_F16, input.data = (char *)values + 1), ARGUMENT, "inputs[0]: is not aligned to 2 bytes");
    WITH((input.type = SWINQ_TYPE_F32, input.data = NULL), NULL, "inputs[0]");
    WITH((input.type = SWINQ_TYPE_F32, input.data = values, output.data = values + bytes - 1), ARGUMENT, "overlaps that of inputs[0]");
    values[info.width * 3 + 5] = (float)NAN;
    WITH((input.type = SWINQ_TYPE_F32, input.data = values), ARGUMENT, "image 0 of the batch: the pixel at row 1, column 1 is NaN in channel 2");
    WITH((input.type = SWINQ_TYPE_F32, input.data = values, input.layout = SWINQ_LAYOUT_NCHW, input.shape[1] = info.channels,
          input.shape[2] = info.height, input.shape[3] = info.width),
         ARGUMENT, "the pixel at row 3, column 5 is NaN in channel 0");
    free(values);
}

static void outputs(const swinq_engine *engine, float *logits)
{
    swinq_tensor input = images_of(pixels), pair[2] = {logits_of(logits), logits_of(logits + info.classes)};
    WITH(output.size = 4, ARGUMENT, "outputs[0]: its `size` is 4");
    WITH(output.name = "logits", OK, "");
    WITH(output.name = "stage9", ARGUMENT, "output `stage9`: the network has the outputs logits");
    WITH(output.data = NULL, NULL, "outputs[0]");
    WITH(output.data = (char *)logits + 1, ARGUMENT, "outputs[0]: is not aligned to 4 bytes");
    WITH(output.type = SWINQ_TYPE_U8, ARGUMENT, "`type` is 1; it must be 2 (SWINQ_TYPE_F32) or 3 (SWINQ_TYPE_F16)");
    WITH(output.layout = 7, ARGUMENT, "`layout` is 7; it must be 1 (SWINQ_LAYOUT_ROWS)");
    WITH(output.rank = 4, ARGUMENT, "`rank` is 4; it must be 2");
    WITH(output.shape[0] = 2, ARGUMENT, "outputs[0]: its `shape` is [2, 10]; it must be [1, 10]");
    WITH(output.shape[1] = 9, ARGUMENT, "must be [1, 10]");
    WITH(output.shape[1] = 0, ARGUMENT, "has a zero");
    WITH((output.strides[0] = -10, output.strides[1] = 1), OK, "");
    WITH(output.strides[1] = 2, ARGUMENT, "dense");
    WITH(output.device_type = 1, ARGUMENT, "SWINQ_DEVICE_HOST");
    WITH(output.device = 3, ARGUMENT, "`device` is 3");
    WITH(output.data = pixels, ARGUMENT, "outputs[0]: its memory overlaps that of inputs[0]");
    WITH(input.data = (uint8_t *)logits + 4 * info.classes - 1, ARGUMENT, "overlaps that of inputs[0]");
    EXPECT(swinq_engine_run(engine, &input, 1, pair, 2, NULL), ARGUMENT, "may be asked for once");
    pair[1].data = logits + info.classes - 1;
    EXPECT(swinq_engine_run(engine, &input, 1, pair, 2, NULL), ARGUMENT, "outputs[1]: its memory overlaps that of outputs[0]");
    pair[1].size = 16;
    EXPECT(swinq_engine_run(engine, &input, 1, pair, 2, NULL), ARGUMENT, "outputs[1]: its `size` is 16, and that of the first");
}

static void calls(const swinq_engine *engine, float *logits)
{
    swinq_tensor input = images_of(pixels), output = logits_of(logits);
    swinq_run_options options = {.size = sizeof options};
    EXPECT(swinq_engine_run((swinq_engine *)model, &input, 1, &output, 1, NULL), HANDLE, "engine");
    EXPECT(swinq_engine_run(NULL, &input, 1, &output, 1, NULL), NULL, "engine");
    EXPECT(swinq_engine_run(engine, NULL, 1, &output, 1, NULL), NULL, "inputs");
    EXPECT(swinq_engine_run(engine, &input, 1, NULL, 1, NULL), NULL, "outputs");
    EXPECT(swinq_engine_run(engine, &input, 0, &output, 1, NULL), ARGUMENT, "input_count: is 0");
    EXPECT(swinq_engine_run(engine, &input, 2, &output, 1, NULL), ARGUMENT, "input_count: is 2; at most 1");
    EXPECT(swinq_engine_run(engine, &input, 1, &output, 0, NULL), ARGUMENT, "output_count: is 0");
    EXPECT(swinq_engine_run(engine, &input, 1, &output, SIZE_MAX, NULL), ARGUMENT, "output_count");
    EXPECT(swinq_engine_run(engine, (swinq_tensor *)((char *)&input + 1), 1, &output, 1, NULL), ARGUMENT, "inputs[0]: is not aligned");
    EXPECT(swinq_engine_run(engine, &input, 1, &output, 1, &options), OK, "");
    options.size = 7;
    EXPECT(swinq_engine_run(engine, &input, 1, &output, 1, &options), ARGUMENT, "options: its `size` is 7");
    options.size = sizeof options;
    options.stream = &options;
    EXPECT(swinq_engine_run(engine, &input, 1, &output, 1, &options), ARGUMENT, "`stream` is not NULL");
    options.stream = NULL;
    options.reserved = 1;
    EXPECT(swinq_engine_run(engine, &input, 1, &output, 1, &options), ARGUMENT, "`reserved` is not 0");
}

static void descriptions(const swinq_engine *engine)
{
    size_t count = 0;
    swinq_tensor output = {.size = sizeof output}, start = {.size = offsetof(swinq_tensor, rank)};
    EXPECT(swinq_engine_get_output_count(NULL, &count), NULL, "engine");
    EXPECT(swinq_engine_get_output_count((swinq_engine *)model, &count), HANDLE, "engine");
    EXPECT(swinq_engine_get_output_count(engine, NULL), NULL, "count");
    EXPECT(swinq_engine_get_output_count(engine, &count), OK, "");
    EXPECT(swinq_engine_get_output(NULL, 0, info.height, info.width, &output), NULL, "engine");
    EXPECT(swinq_engine_get_output(engine, 0, info.height, info.width, NULL), NULL, "output");
    EXPECT(swinq_engine_get_output(engine, count, info.height, info.width, &output), ARGUMENT, "index: is 1; the engine has 1");
    EXPECT(swinq_engine_get_output(engine, 0, 0, info.width, &output), ARGUMENT, "0 is outside 1..=");
    EXPECT(swinq_engine_get_output(engine, 0, SIZE_MAX, SIZE_MAX, &output), ARGUMENT, "is outside 1..=");
    EXPECT(swinq_engine_get_output(engine, 0, info.height / 2, info.width, &output), ARGUMENT, "use a larger image");
    output.size = 1000;
    EXPECT(swinq_engine_get_output(engine, 0, info.height, info.width, &output), ARGUMENT, "size");
    /* An older program, whose structure ends before `rank`. */
    EXPECT(swinq_engine_get_output(engine, 0, info.height, info.width, &start), OK, "");
    if (count != 1 || strcmp(start.name, "logits") != 0 || start.type != SWINQ_TYPE_F32 || start.rank != 0) {
        fprintf(stderr, "%zu outputs; `%s`, type %u, rank %zu\n", count, start.name, start.type, start.rank);
        failures++;
    }
}

/* Images beyond the most pixels are refused, with the bytes that they need. */
static void limits(void)
{
    swinq_engine *engine = NULL;
    swinq_engine_options options = {.size = sizeof options, .backend = SWINQ_BACKEND_CPU};
    float *logits = malloc(info.classes * sizeof *logits);
    uint8_t *large = calloc(4, bytes);
    options.max_pixels = 2 * info.height * info.width;
    EXPECT(swinq_engine_new(model, &options, &engine), OK, "");
    WITH((input.data = large, input.shape[1] *= 2), OK, "");
    WITH((input.data = large, input.shape[1] *= 2, input.shape[2] *= 2), ARGUMENT, "bytes of buffers, and");
    WITH((input.data = large, input.shape[1] *= 2, input.shape[2] *= 2), ARGUMENT, "max_pixels");
    EXPECT(swinq_engine_free(engine), OK, "");
    free(large);
    free(logits);
}

static void engines(float *logits)
{
    swinq_engine *engine = NULL;
    swinq_engine_options options = {.size = sizeof options, .backend = SWINQ_BACKEND_CPU};
    EXPECT(swinq_engine_new(NULL, &options, &engine), NULL, "model");
    EXPECT(swinq_engine_new(model, &options, NULL), NULL, "engine");
    options.backend = 7;
    EXPECT(swinq_engine_new(model, &options, &engine), ARGUMENT, "backend");
    options.backend = SWINQ_BACKEND_CPU;
    options.size = 1000;
    EXPECT(swinq_engine_new(model, &options, &engine), ARGUMENT, "size");
    /* An older program, whose structure ends after `backend`. */
    options.size = offsetof(swinq_engine_options, device);
    EXPECT(swinq_engine_new(model, &options, &engine), OK, "");

    descriptions(engine);
    calls(engine, logits);
    inputs(engine, logits);
    floats(engine, logits);
    outputs(engine, logits);
    limits();
    WITH((void)0, OK, "");
    EXPECT(swinq_model_free((swinq_model *)engine), HANDLE, "model");
    EXPECT(swinq_engine_free(engine), OK, "");
    WITH((void)0, HANDLE, "freed");
    EXPECT(swinq_engine_free(engine), HANDLE, "freed");
    EXPECT(swinq_engine_free(NULL), OK, "");
    EXPECT(swinq_engine_free((swinq_engine *)12345), HANDLE, "engine");
}

static void models(const char *path, const char *data)
{
    char name[8], small[2];
    int called = 0;
    swinq_model *other = NULL;
    swinq_model_info bad = {.size = 3};
    swinq_quantize_options quantize = {.size = sizeof quantize, .images = 8, .progress = stop, .user = &called};
    EXPECT(swinq_model_open(NULL, NULL, &other), NULL, "path");
    EXPECT(swinq_model_open(path, NULL, NULL), NULL, "model");
    EXPECT(swinq_model_open("missing", NULL, &other), FILE, "missing");
    EXPECT(swinq_model_open("\xff\xfe", NULL, &other), ARGUMENT, "UTF-8");
    EXPECT(swinq_model_open(__FILE__, NULL, &other), MODEL, "safetensors");
    EXPECT(swinq_model_get_info(model, &bad), ARGUMENT, "size");
    EXPECT(swinq_model_get_info(model, NULL), NULL, "info");
    EXPECT(swinq_model_get_label(model, 0, small, sizeof small), ARGUMENT, "needs");
    EXPECT(swinq_model_get_label(model, 999, name, sizeof name), ARGUMENT, "class_index");
    EXPECT(swinq_model_save(model, NULL), NULL, "path");
    EXPECT(swinq_model_save(model, "/missing/folder/file"), MODEL, "missing");
    EXPECT(swinq_model_quantize(model, data, &quantize, &other), ARGUMENT, "quantized already");
    EXPECT(swinq_preprocess(model, pixels, 0, 5, pixels, bytes), ARGUMENT, "width");
    EXPECT(swinq_preprocess(model, pixels, SIZE_MAX, 5, pixels, bytes), ARGUMENT, "width");
    EXPECT(swinq_preprocess(model, pixels, 4, 4, pixels, bytes - 1), ARGUMENT, "capacity");
    EXPECT(swinq_decode(model, pixels, 16, pixels, bytes), DATA, "");
}

static void quantizing(const char *float_model, const char *cfg, const char *data)
{
    int called = 0;
    swinq_model *exact = NULL, *coded = NULL;
    swinq_model_info facts = {.size = sizeof facts};
    swinq_open_options open = {.size = sizeof open, .cfg = cfg};
    swinq_quantize_options quantize = {.size = sizeof quantize, .images = 8, .progress = stop, .user = &called};
    open.orientation = "up";
    EXPECT(swinq_model_open(float_model, &open, &exact), ARGUMENT, "orientation");
    open.orientation = "exif";
    open.channels = "grb";
    EXPECT(swinq_model_open(float_model, &open, &exact), ARGUMENT, "channels");
    open.channels = "rgb";
    EXPECT(swinq_model_open(float_model, &open, &exact), OK, "");
    EXPECT(swinq_model_quantize(exact, data, &quantize, &coded), STOPPED, "stopped");
    quantize.recipe = "mode9";
    EXPECT(swinq_model_quantize(exact, data, &quantize, &coded), MODEL, "mode9");
    quantize.recipe = NULL;
    quantize.progress = NULL;
    EXPECT(swinq_model_quantize(exact, "missing", &quantize, &coded), DATA, "missing");
    EXPECT(swinq_model_quantize(exact, data, &quantize, &coded), OK, "");
    EXPECT(swinq_model_get_info(coded, &facts), OK, "");
    if (called != 1 || !facts.quantized || !facts.labelled) {
        fprintf(stderr, "called %d times, quantized %u, labelled %u\n", called, facts.quantized, facts.labelled);
        failures++;
    }
    EXPECT(swinq_model_free(exact), OK, "");
    EXPECT(swinq_model_free(coded), OK, "");
}

/* `two` is a float checkpoint with the network and another tensor, under `model.` and `other.` */
static void finding(const char *two, const char *cfg)
{
    swinq_model *exact = NULL;
    swinq_model_info facts = {.size = sizeof facts};
    swinq_open_options open = {.size = sizeof open, .cfg = cfg};
    EXPECT(swinq_model_open(two, &open, &exact), MODEL, "prefix");
    open.prefix = "other.";
    EXPECT(swinq_model_open(two, &open, &exact), MODEL, "no known naming convention of a Swin (weight)");
    open.prefix = "model.";
    open.dialect = "modern";
    EXPECT(swinq_model_open(two, &open, &exact), ARGUMENT, "dialect: `modern` is none of hf");
    open.dialect = "microsoft";
    EXPECT(swinq_model_open(two, &open, &exact), MODEL, "named as by timm");
    open.dialect = "timm";
    open.weights = "state_dict_ema";
    EXPECT(swinq_model_open(two, &open, &exact), MODEL, "has no keys above its tensors");
    open.weights = NULL;
    EXPECT(swinq_model_open(two, &open, &exact), OK, "");
    EXPECT(swinq_model_get_info(exact, &facts), OK, "");
    if (facts.quantized || facts.classes != 10) {
        fprintf(stderr, "quantized %u, %zu classes\n", facts.quantized, facts.classes);
        failures++;
    }
    EXPECT(swinq_model_free(exact), OK, "");
    /* A program that was built before these options states a smaller size. */
    open.size = offsetof(swinq_open_options, dialect);
    EXPECT(swinq_model_open(two, &open, &exact), MODEL, "prefix");
}

int main(int argc, char **argv)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    float *logits;
    if (argc != 6)
        return 2;
    EXPECT(swinq_model_open(argv[1], NULL, &model), OK, "");
    EXPECT(swinq_model_get_info(model, &info), OK, "");
    bytes = info.height * info.width * info.channels;
    pixels = malloc(bytes);
    logits = calloc(2 * info.classes, sizeof *logits);
    for (size_t i = 0; i < bytes; i++)
        pixels[i] = (uint8_t)(i * 7919 % 251);

    models(argv[1], argv[4]);
    engines(logits);
    quantizing(argv[2], argv[3], argv[4]);
    finding(argv[5], argv[3]);

    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, serve, NULL);
    for (int i = 0; i < THREADS; i++) {
        void *found;
        pthread_join(threads[i], &found);
        if (memcmp(found, logits, info.classes * sizeof *logits) != 0) {
            fprintf(stderr, "thread %d has other logits\n", i);
            failures++;
        }
        free(found);
    }
    EXPECT(swinq_model_free(model), OK, "");
    EXPECT(swinq_model_free(model), HANDLE, "freed");
    EXPECT(swinq_model_get_info(model, &info), HANDLE, "freed");
    free(pixels);
    free(logits);
    return failures == 0 ? 0 : 1;
}
