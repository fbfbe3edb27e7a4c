//! Graphs for images of any size: the order of rows that they compute is that of [`Geometry`], and all else
//! is that of the graphs for one size.

use super::*;
use swinq_model::Windows;
use swinq_plan::{Geometry, Order};

fn any() -> ExportOptions {
    ExportOptions { size: ImageSize::Any, ..ExportOptions::default() }
}

/// Networks of every policy, with windows that shrink in no stage, in the last one, and on one axis.
fn networks() -> Vec<SwinConfig> {
    use WindowPolicy::{
        Detection, HuggingFace, HuggingFaceV2, Microsoft, Mmpretrain, Pad, Timm, TimmAlwaysPartition,
        TimmAnySize,
    };
    let of_stages = Windows::of_stages(vec![Size::new(3, 2), Size::square(4)]).unwrap();
    let mut networks = Vec::new();
    for window_policy in [
        Microsoft,
        HuggingFace,
        Pad,
        Timm,
        TimmAnySize,
        TimmAlwaysPartition,
        HuggingFaceV2,
        Mmpretrain,
        Detection,
    ] {
        for (image, window) in [
            (Size::square(32), Size::square(4).into()),
            (Size::square(20), Size::square(3).into()),
            (Size::square(12), Size::square(7).into()),
            (Size::new(16, 48), Size::square(4).into()),
            (Size::new(16, 48), Size::new(3, 5).into()),
            (Size::new(32, 40), of_stages.clone()),
        ] {
            let config = SwinConfig {
                name: format!("{window_policy:?} of {image}, windows {window}"),
                image_size: image,
                patch_size: 2,
                window_size: window,
                window_policy,
                ..shifted()
            };
            let config =
                config.into_backbone(vec![StageOutput::of_stage(0, true), StageOutput::of_stage(1, false)]);
            networks.extend(config.validate().is_ok().then_some(config));
        }
    }
    networks
}

/// The numbers of rows as the engine has them; the number of tokens is padding.
fn rows(geometry: &Geometry, order: Order) -> Vec<i64> {
    let map = geometry.map(order);
    map.rows().iter().map(|&row| (row as usize).min(map.tokens()) as i64).collect()
}

fn reverse(rows: &[i64], tokens: usize) -> Vec<i64> {
    let mut reverse = vec![0; tokens];
    for (at, &row) in rows.iter().enumerate().filter(|(_, row)| **row < tokens as i64) {
        reverse[row as usize] = at as i64;
    }
    reverse
}

#[test]
fn the_order_of_rows_is_the_engines_for_every_size() {
    let (mut taken, mut refused) = (0, 0);
    for config in networks() {
        let name = config.name.clone();
        let file = export(&model(config.clone(), "float"), &any()).unwrap();
        for (height, width) in
            (1..=41).flat_map(|height| (1..=50).step_by(3).map(move |width| (height, width)))
        {
            let size = Size::new(height, width);
            let checked = check(&file.model, Some(size));
            let Ok(geometry) = Geometry::new(&config, size) else {
                let error = checked.expect_err(&format!("{name} at {size}"));
                assert!(error.to_string().contains("must_be"), "{name} at {size}: {error}");
                refused += 1;
                continue;
            };
            let checked = checked.unwrap_or_else(|error| panic!("{name} at {size}: {error}"));
            let computed = |what: String| {
                let found = checked.integers(&what);
                found.unwrap_or_else(|| panic!("{name} at {size}: no {what}")).to_vec()
            };
            for stage in 0..geometry.stages() {
                let tokens = geometry.grid(stage).tokens();
                let never = config.size_rules().unwrap().stages[stage].shift == Size::square(0);
                for shifted in [false, true] {
                    let word = if shifted && !never { "shifted" } else { "plain" };
                    let expected = rows(&geometry, Order::Windows { stage, shifted });
                    let what = format!("layers.{stage}.windows.{word}");
                    assert_eq!(computed(what), expected, "{name} at {size}");
                    let what = format!("layers.{stage}.tokens.{word}");
                    assert_eq!(computed(what), reverse(&expected, tokens), "{name} at {size}");
                }
                if !never {
                    let masks = geometry.masks(Order::Windows { stage, shifted: true });
                    let masks: Vec<i64> = masks.iter().map(|&mask| mask.into()).collect();
                    assert_eq!(computed(format!("layers.{stage}.masks")), masks, "{name} at {size}");
                }
            }
            let merge = geometry.merge(0);
            let merge: Vec<i64> =
                merge.rows().iter().map(|&row| (row as usize).min(merge.tokens()) as i64).collect();
            assert_eq!(computed("layers.0.merge".to_owned()), merge, "{name} at {size}");
            taken += 1;
        }
    }
    assert!(taken > 5000 && refused > 5000, "{taken} {refused}");
}

#[test]
fn all_else_is_that_of_the_graph_for_one_size() {
    let size = Size::new(29, 50);
    for name in RECIPES {
        let model = model(backbone(shifted()), name);
        for (input, fp16) in [(InputForm::Normalized, false), (InputForm::Pixels, true)] {
            for target in [Target::Ort, Target::OpenVino, Target::TensorRt] {
                for batch in [BatchSize::Free, BatchSize::Fixed(2)] {
                    let of = |size| {
                        let default = ExportOptions::default();
                        export(&model, &ExportOptions { target, batch, input, fp16, size, ..default })
                            .unwrap()
                    };
                    let (free, fixed) = (of(ImageSize::Any), of(ImageSize::Fixed(size)));
                    check(&free.model, Some(size)).unwrap();
                    assert_eq!(quantized_sites(&free.model), quantized_sites(&fixed.model));
                    // The bias of blocks with masks is a table of masks here.
                    let constants = |file: &ModelProto| -> BTreeMap<String, Vec<u8>> {
                        let float =
                            graph(file).initializer.iter().filter(|c| c.data_type() != data_type::INT64);
                        let same = float.filter(|c| !c.name().ends_with(".attn.bias"));
                        same.map(|c| (c.name().to_owned(), c.raw_data().to_vec())).collect()
                    };
                    assert_eq!(constants(&free.model), constants(&fixed.model));
                }
            }
        }
    }
}

#[test]
fn tensors_have_at_most_five_dimensions() {
    let fixed = ImageSize::Fixed(Size::new(29, 50));
    for (config, input, size) in [
        (backbone(shifted()), InputForm::Normalized, ImageSize::Any),
        (backbone(second()), InputForm::Pixels, ImageSize::Any),
        (SwinConfig { window_policy: WindowPolicy::Timm, ..padded() }, InputForm::Normalized, ImageSize::Any),
        (backbone(shifted()), InputForm::Normalized, fixed),
        (backbone(second()), InputForm::Pixels, fixed),
    ] {
        let file = export(&model(config, "default"), &ExportOptions { input, size, ..any() }).unwrap();
        for node in nodes(&file.model, "Transpose") {
            assert!(node.attribute[0].ints.len() <= 5, "{}", node.name());
        }
        for node in nodes(&file.model, "Reshape") {
            let shape = graph(&file.model).initializer.iter().find(|c| c.name() == node.input[1]);
            let rank = shape.map_or(0, |shape| shape.dims[0]);
            assert!(rank <= 5, "{}", node.name());
        }
    }
}

#[test]
fn free_sides_have_names_and_the_metadata_state_the_limits() {
    let file = export(&model(backbone(shifted()), "default"), &any()).unwrap();
    let sides = |info: &ValueInfoProto| -> Vec<String> {
        let tensor = info.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap();
        let dims = &tensor.shape.as_ref().unwrap().dim;
        dims.iter().map(|dim| dim.dim_value.map_or(dim.dim_param().to_owned(), |n| n.to_string())).collect()
    };
    assert_eq!(sides(&graph(&file.model).input[0]), ["batch", "3", "height", "width"]);
    let maps: Vec<Vec<String>> = graph(&file.model).output.iter().map(sides).collect();
    assert_eq!(maps[0], ["batch", "12", "stage1_height", "stage1_width"]);
    assert_eq!(maps[1], ["batch", "24", "stage2_height", "stage2_width"]);
    let metadata = |file: &swinq_onnx::OnnxFile| -> BTreeMap<String, String> {
        let entries = file.model.metadata_props.iter();
        entries.map(|entry| (entry.key().to_owned(), entry.value().to_owned())).collect()
    };
    let found = metadata(&file);
    assert!(found["swinq.input"].starts_with("images: float32 [batch, 3, height, width], RGB"));
    assert_eq!(found["swinq.sizes"], r#"{"rule":"any height and width","smallest":[1,1]}"#);
    assert!(
        found["swinq.outputs"].contains("stage2: float32 [batch, 24, ceil(height / 8), ceil(width / 8)]")
    );
    let classifier = metadata(&export(&model(shifted(), "default"), &any()).unwrap());
    assert_eq!(
        classifier["swinq.sizes"],
        r#"{"rule":"height and width: multiples of 32","smallest":[32,32]}"#
    );
}

#[test]
fn every_opset_and_every_network_passes_the_check_with_free_sides() {
    let rectangles = [rectangle(), second_rectangle(), gray_rectangle()];
    for config in [shifted(), padded(), odd(), second(), second_padded()].into_iter().chain(rectangles) {
        let one_size = match &config {
            SwinConfig { window_policy: WindowPolicy::ShrinkAndPad, .. } => "which library's rule",
            SwinConfig { ape: true, .. } => "absolute_pos_embed",
            _ => "",
        };
        if !one_size.is_empty() {
            let error = export(&model(config, "float"), &any()).unwrap_err();
            assert!(matches!(error, OnnxError::Option { option: "--size", .. }));
            assert!(error.to_string().contains(one_size), "{error}");
            continue;
        }
        let model = model(config, "default");
        for opset in OPSETS {
            export(&model, &ExportOptions { opset, ..any() }).unwrap();
        }
    }
}

/// torchvision leaves out pixels that fill no patch.
#[test]
fn images_of_torchvision_are_cut_to_whole_patches() {
    let config = SwinConfig { window_policy: WindowPolicy::Pad, ..backbone(shifted()) };
    let model = model(config, "default");
    for input in [InputForm::Normalized, InputForm::Pixels] {
        for (size, cut) in [(Size::new(29, 50), true), (Size::new(28, 52), false)] {
            let options = ExportOptions { size: ImageSize::Fixed(size), input, ..ExportOptions::default() };
            let file = export(&model, &options).unwrap();
            assert_eq!(!nodes(&file.model, "Slice").is_empty(), cut);
            assert_eq!(dims(&graph(&file.model).output[0])[2..], [7, if cut { 12 } else { 13 }]);
            let free = export(&model, &ExportOptions { input, ..any() }).unwrap();
            check(&free.model, Some(size)).unwrap();
            let refused = check(&free.model, Some(Size::new(3, 50))).unwrap_err().to_string();
            assert!(refused.contains("image.height.must_be.at_least_4_pixels"), "{refused}");
        }
    }
}
