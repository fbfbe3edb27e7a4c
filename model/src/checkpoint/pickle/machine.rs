//! The pickle machine without the parts that run code: it builds an arena of plain objects.
//!
//! Opcodes of protocols 2 to 5 (Python documentation, module `pickletools`). Calls are understood for the few
//! functions that rebuild tensors and ordered dictionaries; any other call becomes an opaque object.

use std::collections::HashMap;

use super::danger::is_dangerous;
use super::object::{Id, Object, Pickle};
use super::rebuild;

/// Most objects, stack entries, marks and memo entries of one pickle, each: a large training checkpoint has some ten
/// thousand.
const MAX_ITEMS: usize = 1 << 20;
/// Longest name of a module, class or function, in bytes.
const MAX_NAME: usize = 256;

/// Objects that every pickle starts with, so that opcodes of one byte cost no memory.
const NONE: Id = 0;
const FALSE: Id = 1;
const TRUE: Id = 2;
const EMPTY_TUPLE: Id = 3;
const NUMBER: Id = 4;
const BYTES: Id = 5;

/// Reads one pickle from the front of `bytes`. Nothing in it is executed.
///
/// # Errors
/// What is wrong: truncation, an opcode that no checkpoint has, or a class or function that marks an attack.
pub(crate) fn read(bytes: &[u8]) -> Result<Pickle, String> {
    let mut machine = Machine {
        bytes,
        at: 0,
        objects: vec![
            Object::None,
            Object::Bool(false),
            Object::Bool(true),
            Object::Tuple(Vec::new()),
            Object::Opaque("a number".into()),
            Object::Opaque("bytes".into()),
        ],
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        copied: 0,
    };
    loop {
        let opcode = machine.byte()?;
        if opcode == b'.' {
            let root = machine.pop()?;
            return Ok(Pickle { objects: machine.objects, root, consumed: machine.at });
        }
        machine.step(opcode)?;
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    objects: Vec<Object>,
    stack: Vec<Id>,
    /// Stack heights at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Dictionary entries made from lists that stay: one short call copies a list of any length.
    copied: usize,
}

impl Machine<'_> {
    fn step(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            0x80 => self.protocol(),
            0x95 => self.take(8).map(drop), // FRAME: a hint for buffering
            b'(' => self.mark(),
            b'0' => self.pop().map(drop),
            b'1' => self.pop_mark().map(drop),
            b'2' => self.top().and_then(|id| self.push(id)),
            b'q' | b'r' | b'h' | b'j' | 0x94 => self.memo_opcode(opcode),
            b'c' | 0x93 | b'i' => self.global(opcode),
            b'R' | 0x81 | 0x92 | b'o' => self.call(opcode),
            b'b' => self.pop().and_then(|_| self.top()).map(drop), // BUILD: state of an object, not needed
            b'Q' => self.persistent(),
            b'a' | b'e' | b's' | b'u' | 0x90 => self.fill(opcode),
            b']' | b'l' | b'}' | b'd' | 0x8f | 0x91 | b')' | b't' | 0x85..=0x87 => self.container(opcode),
            _ => self.scalar(opcode),
        }
    }

    fn protocol(&mut self) -> Result<(), String> {
        match self.byte()? {
            2..=5 => Ok(()),
            version => Err(format!("pickle protocol {version}; torch.save writes 2 to 5")),
        }
    }

    fn mark(&mut self) -> Result<(), String> {
        if self.marks.len() >= MAX_ITEMS {
            return Err(too_large());
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn memo_opcode(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            b'h' | b'j' => {
                let slot = if opcode == b'h' { u32::from(self.byte()?) } else { self.u32()? };
                let id = *self.memo.get(&slot).ok_or("a reference to an object that is not there")?;
                self.push(id)
            }
            _ => {
                let slot = match opcode {
                    b'q' => u32::from(self.byte()?),
                    b'r' => self.u32()?,
                    _ => self.memo.len() as u32,
                };
                if self.memo.len() >= MAX_ITEMS {
                    return Err(too_large());
                }
                let id = self.top()?;
                self.memo.insert(slot, id);
                Ok(())
            }
        }
    }

    /// GLOBAL, STACK_GLOBAL and INST name a class or function; the name is all that is kept of it.
    fn global(&mut self, opcode: u8) -> Result<(), String> {
        let (module, name) = if opcode == 0x93 {
            let (name, module) = (self.pop()?, self.pop()?);
            (self.name(module)?, self.name(name)?)
        } else {
            (self.line()?, self.line()?)
        };
        if module.len() > MAX_NAME || name.len() > MAX_NAME {
            return Err(format!("a class name of more than {MAX_NAME} bytes, which no checkpoint has"));
        }
        if is_dangerous(&module, &name) {
            return Err(format!(
                "tries to execute {module}.{name}; this is not a checkpoint to trust; nothing was executed"
            ));
        }
        if opcode == b'i' {
            self.pop_mark()?;
            return self.make(Object::Opaque(format!("{module}.{name}").into()));
        }
        self.make(Object::Global(format!("{module}.{name}").into()))
    }

    /// REDUCE, NEWOBJ, NEWOBJ_EX and OBJ.
    fn call(&mut self, opcode: u8) -> Result<(), String> {
        if opcode == b'o' {
            let items = self.pop_mark()?;
            let class = *items.first().ok_or("a call without a class")?;
            return self.make(Object::Opaque(rebuild::name_of(&self.objects, class)));
        }
        if opcode == 0x92 {
            self.pop()?; // keyword arguments
        }
        let (arguments, callee) = (self.pop()?, self.pop()?);
        match rebuild::call(&self.objects, callee, arguments)? {
            rebuild::Called::Existing(id) => self.push(id),
            rebuild::Called::New(object) => {
                if let Object::Dict(items) = &object {
                    self.copied += items.len();
                }
                if self.copied > MAX_ITEMS {
                    return Err(too_large());
                }
                self.make(object)
            }
        }
    }

    fn persistent(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let storage = rebuild::storage(&self.objects, id)?;
        self.make(Object::Storage(storage))
    }

    /// APPEND, APPENDS, SETITEM, SETITEMS, ADDITEMS: what is added to an opaque object is dropped.
    fn fill(&mut self, opcode: u8) -> Result<(), String> {
        let items = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                vec![key, value]
            }
            _ => self.pop_mark()?,
        };
        let target = self.top()?;
        match (&mut self.objects[target as usize], opcode) {
            (Object::List(list), b'a' | b'e') => list.extend(items),
            (Object::Dict(dict), b's' | b'u') => {
                let (pairs, rest) = items.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err("a dictionary key without a value".to_owned());
                }
                dict.extend(pairs.iter().map(|&[key, value]| (key, value)));
            }
            (Object::Opaque(_), _) => {}
            _ => return Err("items added to an object that takes none".to_owned()),
        }
        Ok(())
    }

    fn container(&mut self, opcode: u8) -> Result<(), String> {
        let object = match opcode {
            b')' => return self.push(EMPTY_TUPLE),
            b']' => Object::List(Vec::new()),
            b'}' => Object::Dict(Vec::new()),
            0x8f => Object::Opaque("set".into()),
            b'l' => Object::List(self.pop_mark()?),
            b't' => Object::Tuple(self.pop_mark()?),
            0x91 => {
                self.pop_mark()?;
                Object::Opaque("frozenset".into())
            }
            b'd' => {
                let items = self.pop_mark()?;
                Object::Dict(items.as_chunks::<2>().0.iter().map(|&[key, value]| (key, value)).collect())
            }
            _ => {
                let start = self.stack.len().checked_sub(usize::from(opcode - 0x84)).ok_or_else(underflow)?;
                if self.marks.last().is_some_and(|&mark| mark > start) {
                    return Err(underflow());
                }
                Object::Tuple(self.stack.split_off(start))
            }
        };
        self.make(object)
    }

    fn scalar(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            b'N' => self.push(NONE),
            0x88 => self.push(TRUE),
            0x89 => self.push(FALSE),
            b'K' => self.byte().and_then(|v| self.make(Object::Int(i64::from(v)))),
            b'M' => self.array().and_then(|b| self.make(Object::Int(i64::from(u16::from_le_bytes(b))))),
            b'J' => self.array().and_then(|b| self.make(Object::Int(i64::from(i32::from_le_bytes(b))))),
            0x8a => self.byte().and_then(|n| self.long(usize::from(n))),
            0x8b => self.u32().and_then(|n| self.long(n as usize)),
            b'G' => self.take(8).map(drop).and_then(|()| self.push(NUMBER)),
            b'U' | 0x8c => self.byte().and_then(|n| self.string(u64::from(n))),
            b'T' | b'X' => self.u32().and_then(|n| self.string(u64::from(n))),
            0x8d => self.u64().and_then(|n| self.string(n)),
            b'C' => self.byte().and_then(|n| self.blob(u64::from(n))),
            b'B' => self.u32().and_then(|n| self.blob(u64::from(n))),
            0x8e | 0x96 => self.u64().and_then(|n| self.blob(n)),
            _ => Err(format!(
                "pickle opcode 0x{opcode:02x} at byte {}, which no checkpoint of torch.save has",
                self.at - 1
            )),
        }
    }

    fn long(&mut self, length: usize) -> Result<(), String> {
        let bytes = self.take(length)?;
        let object = match bytes.last() {
            None => Object::Int(0),
            Some(&last) if length <= 8 => {
                let mut wide = if last >= 0x80 { [0xff; 8] } else { [0; 8] };
                wide[..length].copy_from_slice(bytes);
                Object::Int(i64::from_le_bytes(wide))
            }
            Some(_) => Object::Long(bytes.to_vec()),
        };
        self.make(object)
    }

    fn string(&mut self, length: u64) -> Result<(), String> {
        let text = String::from_utf8_lossy(self.take_u64(length)?).into_owned();
        self.make(Object::Text(text))
    }

    fn blob(&mut self, length: u64) -> Result<(), String> {
        self.take_u64(length)?;
        self.push(BYTES)
    }

    fn name(&self, id: Id) -> Result<String, String> {
        match &self.objects[id as usize] {
            Object::Text(text) if text.len() <= MAX_NAME => Ok(text.clone()),
            _ => Err(format!("a class name that is no text of up to {MAX_NAME} bytes")),
        }
    }

    fn make(&mut self, object: Object) -> Result<(), String> {
        if self.objects.len() >= MAX_ITEMS {
            return Err(too_large());
        }
        self.objects.push(object);
        self.push(self.objects.len() as Id - 1)
    }

    fn push(&mut self, id: Id) -> Result<(), String> {
        if self.stack.len() >= MAX_ITEMS {
            return Err(too_large());
        }
        self.stack.push(id);
        Ok(())
    }

    fn top(&self) -> Result<Id, String> {
        self.stack.last().copied().ok_or_else(underflow)
    }

    fn pop(&mut self) -> Result<Id, String> {
        if self.marks.last() == Some(&self.stack.len()) {
            return Err(underflow());
        }
        self.stack.pop().ok_or_else(underflow)
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or_else(underflow)?;
        Ok(self.stack.split_off(mark))
    }

    fn take_u64(&mut self, length: u64) -> Result<&[u8], String> {
        self.take(usize::try_from(length).map_err(|_| truncated())?)
    }

    fn take(&mut self, length: usize) -> Result<&[u8], String> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len()).ok_or_else(truncated)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        Ok(*taken.first_chunk().expect("take gives as many bytes as asked for"))
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&b| b == b'\n').ok_or_else(truncated)?;
        let text = String::from_utf8_lossy(&rest[..length]).into_owned();
        self.at += length + 1;
        Ok(text)
    }
}

fn truncated() -> String {
    "the pickle ends in the middle: the file is truncated or damaged".to_owned()
}

fn underflow() -> String {
    "the pickle takes more from its stack than it put there: the file is damaged".to_owned()
}

fn too_large() -> String {
    format!("the pickle has more than {MAX_ITEMS} objects, which no checkpoint of a Swin has")
}
