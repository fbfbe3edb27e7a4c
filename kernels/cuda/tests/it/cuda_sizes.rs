//! Runs each op on images of several sizes in turn. Without a GPU the tests are skipped; with
//! `REQUIRE_IMPL=cuda` they fail.

use swinq_cuda::ops::attention::{DeviceAttention, HEAD_DIM};
use swinq_cuda::ops::patch::{DevicePatchEmbed, InputForm, InputSite, PatchSpec};
use swinq_cuda::ops::rows::DeviceRows;
use swinq_cuda::ops::{DeviceMap, DeviceStore, DeviceWindows, ResidualType, RowOrder};
use swinq_cuda::{Device, DeviceBuf, Stream};
use swinq_numerics::{
    AttentionQuant, AttentionSpec, ImageEdge, MASKS, Probs, RowMap, RowStore, Size, Windows, reference,
};
use swinq_testing::{Rng, assert_same, step};

use super::cuda_device::device;

/// Tokens of a window, and heads.
const TOKENS: usize = 49;
const HEADS: usize = 2;
/// Patches of the embedding: channels, side, and columns of the result.
const CHANNELS: usize = 2;
const PATCH: usize = 4;
const COLUMNS: usize = 8;

/// Attention with codes, whose masks divide a window into one to four regions.
fn attention(device: &Device, rng: &mut Rng) -> DeviceAttention {
    let region = |i: usize| (i % TOKENS * (i / TOKENS + 1) / TOKENS) as u8;
    let regions: Vec<u8> = (0..MASKS * TOKENS).map(region).collect();
    let [q, k, v] = [0.03, 0.031, 0.017].map(|scale| Some(step(scale)));
    let spec = AttentionSpec {
        heads: HEADS,
        head_dim: HEAD_DIM,
        tokens: TOKENS,
        scales: &[0.2; HEADS],
        hi_lo: &[],
        bias: &rng.floats(HEADS * TOKENS * TOKENS, 2.0),
        regions: Some(&regions),
        mask: -100.0,
        quant: AttentionQuant { q, k, v, scores: None, probs: Probs::U8 },
        store: RowStore::F32,
    };
    DeviceAttention::new(device, &spec, DeviceStore::Codes(step(0.01)), ResidualType::F32).unwrap()
}

/// All windows have the same operands, so the result of a window depends on its mask only.
#[test]
fn attention_masks_the_windows_of_each_image() {
    let Some(device) = device() else { return };
    let (stream, mut rng) = (Stream::new(&device).unwrap(), Rng(5));
    let op = attention(&device, &mut rng);
    let window: Vec<i8> = rng.bytes(TOKENS * 3 * HEADS * HEAD_DIM).into_iter().map(u8::cast_signed).collect();
    let mut of_masks = vec![Vec::new(); MASKS];
    for masks in [&[0, 1, 2, 3][..], &[2, 0], &[0, 0, 0], &[3, 0, 0, 1, 2, 0]] {
        let map = RowMap::identity(masks.len() * TOKENS);
        let windows = DeviceWindows::new(&device, &Windows::new(map, masks.to_vec())).unwrap();
        let qkv = DeviceBuf::from_slice(&device, &window.repeat(2 * masks.len())).unwrap().all();
        let mut got = vec![0_i8; 2 * masks.len() * window.len() / 3];
        let out = DeviceBuf::zeroed(&device, got.len()).unwrap().all();
        op.run(&stream, (2, &windows), &qkv, &out).unwrap();
        out.copy_to(&stream, &mut got).unwrap();
        for (got, mask) in got.chunks_exact(window.len() / 3).zip(masks.iter().cycle()) {
            let known: &mut Vec<i8> = &mut of_masks[usize::from(*mask)];
            if known.is_empty() {
                known.extend(got);
            }
            assert!(got == known, "a window with mask {mask} of {masks:?}");
        }
    }
    of_masks.dedup();
    assert_eq!(of_masks.len(), MASKS, "masks differ");
}

/// The value of a pixel of a patch; zero beyond the image.
fn patch_value(pixels: &[u8], lookup: &[[f32; 256]], size: Size, [y, x, channel]: [usize; 3]) -> f32 {
    if y >= size.height || x >= size.width {
        return 0.0;
    }
    lookup[channel][usize::from(pixels[(y * size.width + x) * CHANNELS + channel])]
}

#[test]
fn patch_embeddings_read_images_of_each_size() {
    let Some(device) = device() else { return };
    let (stream, mut rng) = (Stream::new(&device).unwrap(), Rng(6));
    let k = CHANNELS * PATCH * PATCH;
    let (weight, bias) = (rng.floats(COLUMNS * k, 1.0), rng.floats(COLUMNS, 1.0));
    let lookup: Vec<[f32; 256]> =
        (1..=CHANNELS).map(|c| std::array::from_fn(|byte| byte as f32 / 100.0 - c as f32)).collect();
    let spec = PatchSpec {
        patch: PATCH,
        edge: ImageEdge::Padded,
        lookup: &lookup,
        input: InputSite::Float,
        weight: &weight,
        bias: &bias,
        multiplier: None,
        output: None,
        norm: None,
        epsilon: 0.0,
        position: None,
        residual: ResidualType::F32,
    };
    let op = DevicePatchEmbed::new(&device, &spec).unwrap();
    let flag = DeviceBuf::zeroed(&device, 4).unwrap().all();
    for size in [Size::new(8, 12), Size::new(9, 5), Size::new(8, 12), Size::new(3, 17)] {
        let pixels = rng.bytes(size.area() * CHANNELS);
        let grid = size.map(|side| side.div_ceil(PATCH));
        let want = (0..grid.area() * COLUMNS).map(|i| {
            let (token, column) = (i / COLUMNS, i % COLUMNS);
            let (top, left) = (token / grid.width * PATCH, token % grid.width * PATCH);
            let at = |i: usize| [top + i / PATCH % PATCH, left + i % PATCH, i / PATCH / PATCH];
            let patch: Vec<f32> = (0..k).map(|i| patch_value(&pixels, &lookup, size, at(i))).collect();
            let mut sum = [f32::NAN];
            reference::accumulate_f32(&patch, &weight[column * k..][..k], &mut sum);
            reference::epilogue_f32(sum[0], bias[column], None, None)
        });
        let want: Vec<f32> = want.collect();
        let mut got = vec![f32::NAN; want.len()];
        let out = DeviceBuf::zeroed(&device, 4 * got.len()).unwrap().all();
        let pixels = DeviceBuf::from_slice(&device, &pixels).unwrap().all();
        op.run(&stream, (1, size), (&pixels, InputForm::PIXELS), &out, &flag).unwrap();
        out.copy_to(&stream, &mut got).unwrap();
        assert_same(&got, &want, &size.to_string());
    }
}

/// Merges grids of several sizes: four tokens side by side; padding is zeros.
#[test]
fn rows_are_gathered_in_the_order_of_each_image() {
    let Some(device) = device() else { return };
    let (stream, mut rng) = (Stream::new(&device).unwrap(), Rng(7));
    let op = DeviceRows::merged(&device, 4 * COLUMNS, ResidualType::F32, DeviceStore::Float).unwrap();
    let flag = DeviceBuf::zeroed(&device, 4).unwrap().all();
    for tokens in [8_usize, 5, 8, 13] {
        let rows: Vec<Option<usize>> =
            (0..tokens.div_ceil(4) * 4).rev().map(|token| (token < tokens).then_some(token)).collect();
        let map = DeviceMap::new(&device, &RowMap::new(&rows, tokens).unwrap()).unwrap();
        assert_eq!(map.bytes(), 4 * rows.len());
        let residual = rng.floats(tokens * COLUMNS, 1.0);
        let piece = |row: &Option<usize>| {
            row.map_or(vec![0.0; COLUMNS], |token| residual[token * COLUMNS..][..COLUMNS].to_vec())
        };
        let want: Vec<f32> = rows.iter().flat_map(piece).collect();
        let mut got = vec![f32::NAN; want.len()];
        let out = DeviceBuf::zeroed(&device, 4 * got.len()).unwrap().all();
        let residual = DeviceBuf::from_slice(&device, &residual).unwrap().all();
        op.run(&stream, (1, RowOrder::Map(&map)), &residual, &out, &flag).unwrap();
        out.copy_to(&stream, &mut got).unwrap();
        assert_same(&got, &want, &format!("{tokens} tokens"));
    }
}
