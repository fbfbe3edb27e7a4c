//! Lowers a plan to launches: packs weights, expands bias tables.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use swinq_kernels::attention::WindowAttention;
use swinq_kernels::layer_norm::{LayerNorm, MergeNorm, PooledNorm, ResidualNorm};
use swinq_kernels::linear::{LinearF32, LinearI8, LinearSpec, Store as LinearStore};
use swinq_kernels::patches::Patches;
use swinq_kernels::{Cpu, QkNorm, QuantizeRows};
use swinq_numerics::{ColumnQuantizers, QkNormSpec, Quantizer, RowStore};
use swinq_plan::{Attention, Linear, Merge, Norm, Op, Plan, Step, Store, Weight};

use super::launch::{Kernel, Launch};
use super::place::Place;
use super::positions::PositionTable;

/// One launch for each step of `plan`. All cores pack weights.
pub(super) fn lower(plan: &Plan<'_>, cpu: Cpu) -> Vec<Arc<Launch>> {
    let lowering = Lowering::new(plan, cpu);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let launches: Vec<OnceLock<Arc<Launch>>> = plan.steps.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((index, step)) = take(&next, &plan.steps) {
            launches[index].get_or_init(|| Arc::new(lowering.launch(step)));
        }
    };
    std::thread::scope(|scope| {
        // If the system refuses a thread, the others do its work.
        let spawned =
            (1..cores.min(launches.len())).map(|_| thread::Builder::new().spawn_scoped(scope, work));
        let _helpers: Vec<_> = spawned.flatten().collect();
        work();
    });
    launches.into_iter().map(|launch| launch.into_inner().expect("every step was taken")).collect()
}

/// The next step that no thread has taken, with its index.
fn take<'a, T>(next: &AtomicUsize, steps: &'a [T]) -> Option<(usize, &'a T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    steps.get(index).map(|step| (index, step))
}

/// Makes the launches of a plan.
pub(super) struct Lowering<'a> {
    plan: &'a Plan<'a>,
    cpu: Cpu,
}

impl<'a> Lowering<'a> {
    /// Makes launches of `plan` for the kernels of `cpu`.
    pub(super) fn new(plan: &'a Plan<'a>, cpu: Cpu) -> Lowering<'a> {
        Lowering { plan, cpu }
    }

    /// The launch of `step`, a step of the plan.
    pub(super) fn launch(&self, step: &Step<'_>) -> Launch {
        let residual = matches!(step.store, Store::Residual { .. });
        let place = |tensor, residual| Place { tensor, spec: *self.plan.tensor(tensor), residual };
        Launch {
            name: step.name.clone(),
            macs_per_row: step.macs_per_row,
            weight_bytes: weight_bytes(&step.op),
            input: (step.input != self.plan.image()).then(|| place(step.input, false)),
            output: place(step.output, residual),
            kernel: self.kernel(step),
        }
    }

    fn kernel(&self, step: &Step<'_>) -> Kernel {
        let (cpu, store) = (self.cpu, &step.store);
        match &step.op {
            Op::Patches(op) => Kernel::Patches(Patches::new(op.patch, op.edge, &op.lookup, row_store(store))),
            Op::Linear(op) => self.linear(op, store),
            Op::Norm(op, order) => match store {
                Store::Residual { branch, shortcut } => {
                    let (gamma, beta) = (op.gamma.read(), op.beta.read());
                    let norm = ResidualNorm::new(cpu, &gamma, &beta, op.eps, *branch, *shortcut);
                    Kernel::ResidualNorm(Arc::new(norm), *order)
                }
                _ => Kernel::Norm(Arc::new(self.layer_norm(op, store)), *order),
            },
            Op::Quantize(order) => {
                let residual = self.plan.tensor(step.input);
                let quantize = QuantizeRows::new(cpu, residual.columns, row_store(store));
                Kernel::Quantize(Arc::new(quantize), *order)
            }
            Op::NormInPlace(op) => Kernel::NormInPlace(self.layer_norm(op, store)),
            Op::PositionEmbedding(table) => {
                Kernel::AddTable(PositionTable::new(self.plan.own.grid(0).size, &table.read()))
            }
            Op::QkNorm(op) => {
                let codes = match store {
                    Store::Codes(parts) => {
                        Some(<[Quantizer; 3]>::try_from(&parts[..]).expect("q, k and v have a site each"))
                    }
                    _ => None,
                };
                let (heads, head_dim, hi_lo) = (op.heads, op.head_dim, &op.hi_lo[..]);
                let spec = QkNormSpec { heads, head_dim, hi_lo, codes };
                Kernel::QkNorm(Arc::new(QkNorm::new(cpu, &spec)))
            }
            Op::Attention(op) => self.attention(op, store),
            Op::Merge(Merge { norm: Some(norm), stage }) => {
                let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
                Kernel::Merge(MergeNorm::new(cpu, &gamma, &beta, norm.eps, row_store(store)), *stage)
            }
            Op::Merge(Merge { norm: None, stage }) => {
                let columns = self.plan.tensor(step.input).columns;
                Kernel::MergeRows(QuantizeRows::merging(cpu, columns, 4, row_store(store)), *stage)
            }
            Op::Pool(op) => {
                let (gamma, beta) = (op.gamma.read(), op.beta.read());
                Kernel::Pool(PooledNorm::new(cpu, &gamma, &beta, op.eps, row_store(store)))
            }
        }
    }

    fn linear(&self, op: &Linear<'_>, store: &Store) -> Kernel {
        let bias = op.bias.map(|bias| bias.read());
        let spec = LinearSpec {
            n: op.n,
            k: op.k,
            bias: bias.as_deref(),
            output: op.output,
            gelu: op.gelu,
            store: linear_store(store, op.n),
        };
        match &op.weight {
            Weight::Int8 { codes, multiplier, zero_points, .. } => {
                let codes = &codes.codes;
                let linear = LinearI8::with_zero_points(self.cpu, spec, codes, multiplier, zero_points);
                Kernel::LinearI8(Arc::new(linear), op.order)
            }
            Weight::Float(values) => {
                Kernel::LinearF32(Arc::new(LinearF32::new(self.cpu, spec, &values.read())), op.order)
            }
        }
    }

    fn attention(&self, op: &Attention<'_>, store: &Store) -> Kernel {
        let bias = op.bias.expand();
        let attention = WindowAttention::new(self.cpu, op.spec(&bias, row_store(store)));
        Kernel::Attention(Arc::new(attention), op.order)
    }

    fn layer_norm(&self, op: &Norm<'_>, store: &Store) -> LayerNorm {
        LayerNorm::new(self.cpu, &op.gamma.read(), &op.beta.read(), op.eps, row_store(store))
    }
}

/// Bytes of the weight or table of `op`. The parameters of norms do not count, because they are small.
fn weight_bytes(op: &Op<'_>) -> usize {
    match op {
        Op::Linear(op) if op.is_int8() => op.n * op.k,
        Op::Linear(op) => 4 * op.n * op.k,
        Op::Attention(op) => 4 * op.bias.len(),
        Op::PositionEmbedding(table) => 4 * table.len(),
        _ => 0,
    }
}

fn row_store(store: &Store) -> RowStore {
    match store {
        Store::F32 => RowStore::F32,
        Store::Fake(q) => RowStore::Fake(*q),
        Store::Codes(q) => RowStore::Codes(q[0]),
        Store::ChannelFake(_) | Store::ChannelCodes(_) | Store::Residual { .. } => {
            unreachable!("only linear layers store with a scale per channel or add to the residual stream")
        }
    }
}

fn linear_store(store: &Store, columns: usize) -> LinearStore {
    match store {
        Store::F32 => LinearStore::F32,
        Store::Fake(q) => LinearStore::Fake(ColumnQuantizers::symmetric(columns, &[*q])),
        Store::Codes(parts) => LinearStore::Codes(ColumnQuantizers::symmetric(columns, parts)),
        Store::ChannelFake(channels) => LinearStore::Fake(channels.clone()),
        Store::ChannelCodes(channels) => LinearStore::Codes(channels.clone()),
        Store::Residual { branch, shortcut } => {
            LinearStore::Residual { branch: *branch, shortcut: *shortcut }
        }
    }
}
