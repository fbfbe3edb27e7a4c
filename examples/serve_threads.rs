//! Serves requests from several threads on one model. Every thread has its own engine, which runs on that
//! thread alone. All engines share the model's packed weights. In this example the requests are image files.
//!
//! ```console
//! $ cargo run --release --example serve_threads -- swin_t.int8.safetensors 4 *.jpg
//! ```

use std::sync::Mutex;

use swinq::{EngineOptions, Error, Images, Model, predict};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(path), Some(Ok(threads))) = (arguments.first(), arguments.get(1).map(|n| n.parse::<usize>()))
    else {
        eprintln!("usage: serve_threads MODEL THREADS IMAGE...");
        std::process::exit(2);
    };
    let model = Model::open(path)?;
    let requests = Mutex::new(arguments[2..].iter());
    std::thread::scope(|scope| {
        let serve = || serve(&model, &requests);
        let servers: Vec<_> = (0..threads).map(|_| scope.spawn(serve)).collect();
        servers.into_iter().try_for_each(|server| server.join().expect("a server does not panic"))
    })
}

/// Answers requests until there are no more.
fn serve(model: &Model, requests: &Mutex<std::slice::Iter<'_, String>>) -> Result<(), Error> {
    let engine = model.engine(&EngineOptions::cpu(1))?;
    loop {
        let Some(image) = requests.lock().expect("no server panics").next() else { return Ok(()) };
        for class in &predict(&engine, &Images::from_files(&[image])?, 1)?[0].classes {
            println!("{image}: class {} ({:.1} %)", class.index, 100.0 * class.probability);
        }
    }
}
