/// Single sites are measured on one of so many images of a group: there are twice as many sites as layers, and layers
/// are what recipes change.
const SITE_SHARE: usize = 2;

/// The effects of all parts.
struct Measured {
    float: EffectSums,
    /// Of the whole recipe, on the images of the layers and of the sites.
    whole: [EffectSums; 2],
    /// Number of images of the sites.
    site_images: usize,
    /// For each part: quantized alone, and left alone in float.
    parts: Vec<[EffectSums; 2]>,
    blocks: Vec<(String, Distortion)>,
}

/// Parts to measure on some images of a group.
struct Job<'a> {
    /// Index of the group.
    group: usize,
    images: &'a Batch,
    /// Indices of the parts in forward order.
    parts: Vec<usize>,
    /// The float model and the model with the whole recipe, and their recipes and outputs.
    bases: &'a [Variant; 2],
    recipes: &'a [Recipe; 2],
    outputs: &'a [Vec<&'a [f32]>; 2],
}

struct Run {
    quantizer: ModelQuantizer,
    recipe: Recipe,
    runner: VariantRunner,
    cache: Cache,
    metric: Metric,
    /// The first `layers` are measured on all images, the others on some.
    parts: Vec<ModelElement>,
    layers: usize,
}

impl Run {
    /// A run whose cache's key begins with `command`. `parts` gives the parts of a model, and the number of those that are
    /// measured on all images; they are the first.
    fn new(
        mut quantizer: ModelQuantizer,
        options: &SensitivityOptions,
        metric: Metric,
        batches: &[Batch],
        (command, parts): (&str, impl FnOnce(&QuantizedModel) -> Result<(Vec<ModelElement>, usize), Error>),
        progress: &mut dyn FnMut(SensitivityProgress) -> ControlFlow<()>,
    ) -> Result<Run, Error> {
        let recipe = options.recipe.clone();
        let model = quantizer.apply(&recipe)?;
        let runner = VariantRunner::new(model, EngineOptions::cpu(options.threads).cpu_options()?)?;
        let (parts, layers) = parts(model)?;
        let cache = match &options.cache {
            Some(path) => Cache::open(path, &run_key(command, &mut quantizer, (&recipe, &metric), batches)?)?,
            None => Cache::in_memory(),
        };
        if options.cache.is_some() && progress(SensitivityProgress::Cache(cache.found())).is_break() {
            return Err(Error::Interrupted);
        }
        Ok(Run { quantizer, recipe, runner, cache, metric, parts, layers })
    }

    fn measure(
        &mut self,
        batches: &[Batch],
        progress: &mut dyn FnMut(SensitivityProgress) -> ControlFlow<()>,
    ) -> Result<Measured, Error> {
        let config = &self.quantizer.float().config;
        let of_size = |batch: &Batch| groups(batch, group_of(config, batch.size));
        let groups: Vec<Batch> = batches.iter().flat_map(of_size).collect();
        let each = 2 * self.parts.len() + 1;
        let mut measured = Measured {
            float: EffectSums::default(),
            whole: Default::default(),
            site_images: 0,
            parts: vec![Default::default(); self.parts.len()],
            blocks: Vec::new(),
        };
        let float = self.float_recipe();
        for (index, group) in groups.iter().enumerate() {
            let mut done = index * each;
            let mut finished = || {
                done += 1;
                match progress(SensitivityProgress::Measure(done, groups.len() * each)) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(Error::Interrupted),
                }
            };
            self.group(index, group, &float, &mut measured, &mut finished)?;
        }
        Ok(measured)
    }

    /// The recipe with every site off. Unlike [`Recipe::float`], it keeps the settings of the sites.
    fn float_recipe(&self) -> Recipe {
        let off = Rule { pattern: "**".to_owned(), enable: Some(false), ..Rule::default() };
        self.recipe.clone().with_rule(off)
    }

    fn prepare(&mut self, recipe: &Recipe) -> Result<Variant, Error> {
        Ok(self.runner.prepare(self.quantizer.apply(recipe)?)?)
    }

    /// Measures one group of images, and adds the sums to `measured`.
    fn group(
        &mut self,
        index: usize,
        group: &Batch,
        float: &Recipe,
        measured: &mut Measured,
        finished: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.runner.set_size(group.size)?;
        let recipes = [float.clone(), self.recipe.clone()];
        let bases = [self.prepare(&recipes[0])?, self.prepare(&recipes[1])?];
        self.blocks(index, group, &bases, &mut measured.blocks)?;
        finished()?;
        let few = group.slice(0..group.len().div_ceil(SITE_SHARE));
        measured.site_images += few.len();
        let all = bases.each_ref().map(|base| Walk::new(base, group).outputs(&mut self.runner, base).values);
        for (set, images) in [group, &few].into_iter().enumerate() {
            let outputs = all.each_ref().map(|outputs| first_of(outputs, images.len(), group.len()));
            if set == 0 {
                measured.float.merge(&self.sums(&outputs[0], &borrowed(&outputs[0]), images)?);
            }
            measured.whole[set].merge(&self.sums(&outputs[0], &borrowed(&outputs[1]), images)?);
            let of_set = |part: &usize| (*part >= self.layers) == (set == 1);
            let parts = self.forward_order().into_iter().filter(of_set).collect();
            let job =
                Job { group: index, images, parts, bases: &bases, recipes: &recipes, outputs: &outputs };
            self.parts(&job, measured, finished)?;
        }
        Ok(())
    }

    /// The distance of the outputs `own` of `images` from those of the float model.
    fn sums(
        &self,
        reference: &[&[f32]],
        own: &[Cow<'_, [f32]>],
        images: &Batch,
    ) -> Result<EffectSums, EvalError> {
        self.metric.sums(reference, own, (images.len(), &images.labels))
    }

    /// Measures the parts of a job, and adds the sums to `measured`.
    fn parts(
        &mut self,
        job: &Job<'_>,
        measured: &mut Measured,
        finished: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (direction, (base, recipe)) in job.bases.iter().zip(job.recipes).enumerate() {
            let mut walk = Walk::new(base, job.images);
            for &part in &job.parts {
                let kind = self.parts[part].kind;
                let name = format!("{} {} {kind}", job.group, ["alone", "without"][direction]);
                let found = match self.cache.get::<EffectSums>(&name) {
                    Some(found) => found,
                    None => {
                        let mut changed = recipe.clone();
                        changed.rules.extend(self.parts[part].switched(direction == 0));
                        let variant = self.prepare(&changed)?;
                        let computed = walk.outputs(&mut self.runner, &variant);
                        let own = computed.with(&job.outputs[direction]);
                        let found = self.sums(&job.outputs[0], &own, job.images)?;
                        drop(variant);
                        self.runner.forget_unused();
                        self.cache.put(&name, &found)?;
                        found
                    }
                };
                measured.parts[part][direction].merge(&found);
                finished()?;
            }
        }
        Ok(())
    }

    /// Indices of the parts by their first site, so that a walk goes forward only.
    fn forward_order(&self) -> Vec<usize> {
        let order = swinq_model::site::all_sites(&self.quantizer.float().config);
        let first = |part: &ModelElement| order.iter().position(|site| part.sites.contains(site));
        let mut indices: Vec<usize> = (0..self.parts.len()).collect();
        indices.sort_by_key(|&index| first(&self.parts[index]));
        indices
    }

    /// Adds the distortion of the residual stream after each block of a group of images.
    fn blocks(
        &mut self,
        index: usize,
        group: &Batch,
        [float, whole]: &[Variant; 2],
        blocks: &mut Vec<(String, Distortion)>,
    ) -> Result<(), Error> {
        let name = format!("{index} blocks");
        let found = match self.cache.get::<Vec<(String, Distortion)>>(&name) {
            Some(found) => found,
            None => {
                let mut found = Vec::new();
                let mut walks = [Walk::new(float, group), Walk::new(whole, group)];
                let steps: Vec<String> = float.plan().steps.iter().map(|step| step.name.clone()).collect();
                let positions: Vec<usize> = self.runner.positions().iter().map(|p| p.step).collect();
                for (position, step) in positions.into_iter().enumerate() {
                    let Some(place) = step.checked_sub(1).and_then(|step| place_after(&steps[step])) else {
                        continue;
                    };
                    let [float, whole] = &mut walks;
                    let reference = float.residual_at(&mut self.runner, position);
                    let mut distortion = Distortion::default();
                    distortion.update(reference, whole.residual_at(&mut self.runner, position))?;
                    // Several steps complete the patch embedding; the last one counts.
                    found.retain(|(earlier, _): &(String, Distortion)| *earlier != place);
                    found.push((place, distortion));
                }
                self.cache.put(&name, &found)?;
                found
            }
        };
        if blocks.is_empty() {
            *blocks = found;
        } else {
            blocks.iter_mut().zip(&found).for_each(|((_, sum), (_, found))| sum.merge(found));
        }
        Ok(())
    }

    fn results(
        mut self,
        options: &SensitivityOptions,
        images: &Images,
        batches: &[Batch],
        measured: Measured,
    ) -> Result<Sensitivity, Error> {
        let recipe = self.recipe.clone();
        let plan = self.prepare(&recipe)?.plan().clone();
        let parts = self.parts.iter().zip(&measured.parts);
        let mut elements: Vec<Element> = parts.map(|(part, sums)| element(part, sums, &plan)).collect();
        let sites = elements.split_off(self.layers);
        let model = self.quantizer.apply(&recipe)?.clone();
        let first = &batches[0];
        let few = SPREAD_IMAGES * model.config.image_size.area() / first.size.area();
        let spread_on = first.slice(0..few.clamp(1, SPREAD_IMAGES).min(first.len()));
        let (float_effect, threads) = (measured.float.effect(), self.runner.threads());
        let [whole, site_whole] = measured.whole.map(|sums| sums.effect());
        Ok(Sensitivity {
            schema: SENSITIVITY_SCHEMA,
            model: subject(&self.quantizer),
            images: batches.iter().map(Batch::len).sum(),
            float_correct: float_effect.top1_correct,
            whole,
            site_images: measured.site_images,
            site_whole,
            layers: elements,
            sites,
            blocks: measured.blocks.iter().map(|(name, d)| BlockError::new(name, d)).collect(),
            ranges: ranges::statistics(&self.quantizer, &model, &spread_on)?,
            environment: environment(threads)?,
            data: Some(info(images, &model, options.sizing)),
            recipe: options.recipe.clone(),
        })
    }
}

/// A part and its effects, quantized alone and left alone in float; `plan` is that of the quantized model.
fn element(part: &ModelElement, [alone, without]: &[EffectSums; 2], plan: &Outline) -> Element {
    Element {
        name: part.kind.to_string(),
        kind: part.kind.result(),
        sites: part.sites.iter().map(ToString::to_string).collect(),
        macs: part.kind.macs(plan),
        alone: alone.effect(),
        without: without.effect(),
    }
}

/// `outputs`, borrowed.
fn borrowed<'a>(outputs: &[&'a [f32]]) -> Vec<Cow<'a, [f32]>> {
    outputs.iter().map(|output| Cow::Borrowed(*output)).collect()
}

/// The place in the network whose output the step of this name completes; `None` within a block.
fn place_after(step: &str) -> Option<String> {
    let place = step.strip_suffix(".mlp.fc2").or_else(|| step.strip_suffix(".reduction"));
    let embedding = step.starts_with("patch_embed") || step == "absolute_pos_embed";
    place.map(str::to_owned).or_else(|| embedding.then(|| "patch_embed".to_owned()))
}
