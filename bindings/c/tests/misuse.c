/* Misuse of every function: each call gives its error code, and the message names the argument. */

#include <pthread.h>
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

/* An engine of its own; returns the logits of `pixels`. */
static void *serve(void *unused)
{
    swinq_engine *engine = NULL;
    swinq_engine_options options = {.size = sizeof options, .backend = SWINQ_BACKEND_CPU, .threads = 1};
    float *logits = calloc(info.classes, sizeof *logits);
    (void)unused;
    if (swinq_engine_new(model, &options, &engine) != SWINQ_STATUS_OK)
        return logits;
    for (int i = 0; i < 3; i++)
        swinq_engine_infer(engine, pixels, bytes, logits, info.classes);
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

static void engines(float *logits)
{
    swinq_engine *engine = NULL, *wrong;
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

    wrong = (swinq_engine *)model;
    EXPECT(swinq_engine_infer(wrong, pixels, bytes, logits, info.classes), HANDLE, "engine");
    EXPECT(swinq_engine_infer(NULL, pixels, bytes, logits, info.classes), NULL, "engine");
    EXPECT(swinq_engine_infer(engine, NULL, bytes, logits, info.classes), NULL, "pixels");
    EXPECT(swinq_engine_infer(engine, pixels, bytes, NULL, info.classes), NULL, "logits");
    EXPECT(swinq_engine_infer(engine, pixels, bytes - 1, logits, info.classes), ARGUMENT, "pixel_bytes");
    EXPECT(swinq_engine_infer(engine, pixels, bytes, logits, info.classes - 1), ARGUMENT, "logit_count");
    EXPECT(swinq_engine_infer(engine, pixels, bytes, (float *)((char *)logits + 1), info.classes), ARGUMENT, "aligned");
    EXPECT(swinq_engine_infer(engine, pixels, bytes, logits, info.classes), OK, "");
    EXPECT(swinq_model_free((swinq_model *)engine), HANDLE, "model");
    EXPECT(swinq_engine_free(engine), OK, "");
    EXPECT(swinq_engine_infer(engine, pixels, bytes, logits, info.classes), HANDLE, "freed");
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

int main(int argc, char **argv)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    float *logits;
    if (argc != 5)
        return 2;
    EXPECT(swinq_model_open(argv[1], NULL, &model), OK, "");
    EXPECT(swinq_model_get_info(model, &info), OK, "");
    bytes = info.height * info.width * info.channels;
    pixels = malloc(bytes);
    logits = malloc(info.classes * sizeof *logits);
    for (size_t i = 0; i < bytes; i++)
        pixels[i] = (uint8_t)(i * 7919 % 251);

    models(argv[1], argv[4]);
    engines(logits);
    quantizing(argv[2], argv[3], argv[4]);

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
