//! Serves requests from several threads on one engine, which divides the cores among the calls that run at
//! the same time. In this example the requests are image files.
//!
//! ```console
//! $ cargo run --release --example serve_threads -- swin_t.int8.safetensors 4 *.jpg
//! ```

use std::sync::Mutex;

use swinq::{Engine, EngineOptions, Error, Images, Model, predict};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(path), Some(Ok(threads))) = (arguments.first(), arguments.get(1).map(|n| n.parse::<usize>()))
    else {
        eprintln!("usage: serve_threads MODEL THREADS IMAGE...");
        std::process::exit(2);
    };
    let engine = Model::open(path)?.engine(&EngineOptions::default())?;
    let requests = Mutex::new(arguments[2..].iter());
    std::thread::scope(|scope| {
        let serve = || serve(&engine, &requests);
        let servers: Vec<_> = (0..threads).map(|_| scope.spawn(serve)).collect();
        servers.into_iter().try_for_each(|server| server.join().expect("a server does not panic"))
    })
}

/// Answers requests until there are no more.
fn serve(engine: &Engine, requests: &Mutex<std::slice::Iter<'_, String>>) -> Result<(), Error> {
    loop {
        let Some(image) = requests.lock().expect("no server panics").next() else { return Ok(()) };
        for class in &predict(engine, &Images::from_files(&[image])?, 1)?[0].classes {
            println!("{image}: class {} ({:.1} %)", class.index, 100.0 * class.score);
        }
    }
}
