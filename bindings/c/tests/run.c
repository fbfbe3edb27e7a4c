/* Prints the last output for images of a size, with all digits: one line for each row of logits or of a map. A
 * stack of blocks takes tokens in the place of pixels.
 *
 *   run MODEL HEIGHT WIDTH IMAGES u8|f32|f16 nhwc|nchw
 *
 * Byte `i` of the images is `i * 7919 % 251`; the value of a float is `byte / 64 - 2`. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <swinq.h>

static void check(swinq_status status)
{
    if (status == SWINQ_STATUS_OK)
        return;
    fprintf(stderr, "status %d: %s\n", (int)status, swinq_last_error());
    exit(1);
}

/* The bits of `(byte - 128) / 64` as half precision. */
static uint16_t half(int byte)
{
    int sixtyfourths = abs(byte - 128), exponent = 15 - 6 + 10;
    uint16_t sign = byte < 128 ? 0x8000 : 0;
    if (sixtyfourths == 0)
        return 0;
    while (sixtyfourths < 1024) {
        sixtyfourths *= 2;
        exponent--;
    }
    return (uint16_t)(sign | exponent << 10 | (sixtyfourths - 1024));
}

/* Element `i` of the images of `type`. */
static void set(void *values, uint32_t type, size_t i)
{
    int byte = (int)(i * 7919 % 251);
    if (type == SWINQ_TYPE_U8)
        ((uint8_t *)values)[i] = (uint8_t)byte;
    else if (type == SWINQ_TYPE_F32)
        ((float *)values)[i] = (float)byte / 64 - 2;
    else
        ((uint16_t *)values)[i] = half(byte);
}

/* The value of a half. */
static double decoded(uint16_t half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return half >> 15 ? -value : value;
}

int main(int argc, char **argv)
{
    swinq_model *model;
    swinq_engine *engine;
    swinq_model_info info = {.size = sizeof info};
    swinq_engine_options options = {.size = sizeof options, .backend = SWINQ_BACKEND_CPU, .max_batch = 2};
    swinq_tensor input = {.size = sizeof input, .rank = 4};
    swinq_tensor output = {.size = sizeof output};
    size_t count, length = 1, values = 1;
    void *pixels;
    int first;
    float *found, *again;
    if (argc != 7)
        return 2;
    check(swinq_model_open(argv[1], NULL, &model));
    check(swinq_model_get_info(model, &info));
    check(swinq_engine_new(model, &options, &engine));
    check(swinq_model_free(model));
    check(swinq_engine_get_output_count(engine, &count));
    input.shape[0] = strtoul(argv[4], NULL, 10);
    input.type = strcmp(argv[5], "u8") == 0 ? SWINQ_TYPE_U8 : strcmp(argv[5], "f32") == 0 ? SWINQ_TYPE_F32 : SWINQ_TYPE_F16;
    first = strcmp(argv[6], "nchw") == 0;
    input.layout = first ? SWINQ_LAYOUT_NCHW : SWINQ_LAYOUT_NHWC;
    input.shape[1 + first] = strtoul(argv[2], NULL, 10);
    input.shape[2 + first] = strtoul(argv[3], NULL, 10);
    input.shape[first ? 1 : 3] = info.channels;
    for (size_t i = 0; i < input.rank; i++)
        length *= input.shape[i];
    input.data = pixels = malloc(length * (input.type == SWINQ_TYPE_U8 ? 1 : input.type == SWINQ_TYPE_F32 ? 4 : 2));
    for (size_t i = 0; i < length; i++)
        set(pixels, input.type, i);

    check(swinq_engine_get_output(engine, count - 1, input.shape[1 + first], input.shape[2 + first], &output));
    output.shape[0] = input.shape[0];
    for (size_t i = 0; i < output.rank; i++)
        values *= output.shape[i];
    output.data = found = malloc(values * sizeof *found);
    check(swinq_engine_run(engine, &input, 1, &output, 1, NULL));
    /* The only input and output need no names. */
    output.data = again = malloc(values * sizeof *again);
    output.name = NULL;
    input.name = "pixels";
    check(swinq_engine_run(engine, &input, 1, &output, 1, NULL));
    if (memcmp(found, again, values * sizeof *found) != 0) {
        fprintf(stderr, "another call gives other values\n");
        return 1;
    }
    /* In half precision, each value is rounded to 11 bits. */
    output.type = SWINQ_TYPE_F16;
    check(swinq_engine_run(engine, &input, 1, &output, 1, NULL));
    for (size_t i = 0; i < values; i++) {
        if (fabs(decoded(((uint16_t *)again)[i]) - found[i]) > ldexp(fabs(found[i]), -11) + ldexp(1.0, -25)) {
            fprintf(stderr, "value %zu in half precision is not near %g\n", i, (double)found[i]);
            return 1;
        }
    }
    for (size_t i = 0; i < values; i++)
        printf("%.9g%c", (double)found[i], (i + 1) % output.shape[output.rank - 1] == 0 ? '\n' : ' ');
    check(swinq_engine_free(engine));
    free(pixels);
    free(found);
    free(again);
    return 0;
}
