/* Classifies image files: prints the logits of each, and the name of its best class.
 *
 *   cc -I bindings/c/include bindings/c/examples/classify.c -L DIR -lswinq -o classify
 *   ./classify swin_t.int8.safetensors cat.jpg dog.png
 */

#include <stdio.h>
#include <stdlib.h>

#include <swinq.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, swinq_last_error());
    return 1;
}

/* The bytes of a file; NULL if it cannot be read. */
static uint8_t *contents(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = NULL;
    long end;
    if (file == NULL)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0) {
        *length = (size_t)end;
        bytes = malloc(*length);
        if (bytes != NULL && fread(bytes, 1, *length, file) != *length) {
            free(bytes);
            bytes = NULL;
        }
    }
    fclose(file);
    return bytes;
}

static int classify(swinq_model *model, swinq_engine *engine, const swinq_model_info *info, const char *path)
{
    size_t length = 0, size = info->height * info->width * info->channels, best = 0;
    uint8_t *file = contents(path, &length), *pixels = malloc(size);
    float *logits = malloc(info->classes * sizeof *logits);
    swinq_tensor input = {
        .size = sizeof input,
        .data = pixels,
        .type = SWINQ_TYPE_U8,
        .layout = SWINQ_LAYOUT_NHWC,
        .rank = 4,
        .shape = {1, info->height, info->width, info->channels},
    };
    swinq_tensor output = {
        .size = sizeof output,
        .data = logits,
        .type = SWINQ_TYPE_F32,
        .layout = SWINQ_LAYOUT_ROWS,
        .rank = 2,
        .shape = {1, info->classes},
    };
    char name[256];
    int result = 1;
    if (file == NULL || pixels == NULL || logits == NULL)
        fprintf(stderr, "%s: cannot be read\n", path);
    else if (swinq_decode(model, file, length, pixels, size) != SWINQ_STATUS_OK)
        failed(path);
    else if (swinq_engine_run(engine, &input, 1, &output, 1, NULL) != SWINQ_STATUS_OK)
        failed("swinq_engine_run");
    else {
        printf("%s:", path);
        for (size_t i = 0; i < info->classes; i++) {
            printf(" %.9g", (double)logits[i]);
            if (logits[i] > logits[best])
                best = i;
        }
        if (swinq_model_get_label(model, best, name, sizeof name) == SWINQ_STATUS_OK)
            printf(" %s\n", name);
        else
            printf(" class %zu\n", best);
        result = 0;
    }
    free(file);
    free(pixels);
    free(logits);
    return result;
}

int main(int argc, char **argv)
{
    swinq_model *model = NULL;
    swinq_engine *engine = NULL;
    swinq_model_info info = {.size = sizeof info};
    swinq_engine_options options = {.size = sizeof options, .backend = SWINQ_BACKEND_CPU};
    int result = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: classify MODEL IMAGE...\n");
        return 2;
    }
    if (swinq_abi_version() != SWINQ_ABI_VERSION) {
        fprintf(stderr, "the library has another interface than the header\n");
        return 2;
    }
    if (swinq_model_open(argv[1], NULL, &model) != SWINQ_STATUS_OK)
        result = failed("swinq_model_open");
    else if (swinq_model_get_info(model, &info) != SWINQ_STATUS_OK)
        result = failed("swinq_model_get_info");
    else if (swinq_engine_new(model, &options, &engine) != SWINQ_STATUS_OK)
        result = failed("swinq_engine_new");
    for (int i = 2; i < argc && result == 0; i++)
        result = classify(model, engine, &info, argv[i]);
    swinq_engine_free(engine);
    swinq_model_free(model);
    return result;
}
