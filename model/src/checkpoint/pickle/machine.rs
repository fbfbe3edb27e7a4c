//! A pickle machine that runs no code: it builds an arena of plain objects.
//!
//! It reads the opcodes of protocols 2 to 5 (Python's documentation, module `pickletools`). It understands
//! calls of the few functions that rebuild tensors, arrays and ordered dictionaries; any other call becomes
//! an opaque object.

use std::borrow::Cow;
use std::collections::HashMap;

use super::danger::{is_dangerous, refusal};
use super::object::{ArrayRef, Id, Object, Pickle};
use super::reader::Reader;
use super::stack::{MAX_ITEMS, Stack, too_large};
use super::{getattr, rebuild};

/// Longest name of a module, class or function accepted, in bytes.
pub(super) const MAX_NAME: usize = 256;

// Objects that exist from the start, so that opcodes of one byte allocate nothing. Those of `getattr` follow.
const NONE: Id = 0;
const FALSE: Id = 1;
const TRUE: Id = 2;
const EMPTY_TUPLE: Id = 3;
const NUMBER: Id = 4;
/// Number of the objects above.
pub(super) const CONSTANTS: usize = 5;

/// Reads one pickle from the front of `bytes`. Nothing in it is executed.
///
/// # Errors
/// The pickle is truncated, has an opcode that no checkpoint has, or names a class or function that marks an
/// attack.
pub(crate) fn read(bytes: &[u8]) -> Result<Pickle<'_>, String> {
    let constants: [Object; CONSTANTS] = [
        Object::None,
        Object::Bool(false),
        Object::Bool(true),
        Object::Tuple(Vec::new()),
        Object::Opaque("a number".into()),
    ];
    let mut machine = Machine {
        reader: Reader::new(bytes),
        objects: constants.into_iter().chain(getattr::objects()).collect(),
        stack: Stack::default(),
        memo: HashMap::new(),
        copied: 0,
    };
    loop {
        let opcode = machine.reader.byte()?;
        if opcode == b'.' {
            let root = machine.stack.finish()?;
            return Ok(Pickle { objects: machine.objects, root, consumed: machine.reader.position() });
        }
        machine.step(opcode)?;
    }
}

struct Machine<'a> {
    reader: Reader<'a>,
    objects: Vec<Object<'a>>,
    stack: Stack,
    memo: HashMap<u32, Id>,
    /// Number of dictionary entries copied from lists; bounded, because one short call copies a list of any
    /// length.
    copied: usize,
}

impl<'a> Machine<'a> {
    fn step(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            0x80 => self.protocol(),
            0x95 => self.reader.take(8).map(drop), // FRAME: a buffering hint
            b'(' => self.stack.mark(),
            b'0' => self.stack.pop().map(drop),
            b'1' => self.stack.pop_mark().map(drop),
            b'2' => self.stack.top().and_then(|id| self.stack.push(id)),
            b'q' | b'r' | b'h' | b'j' | 0x94 => self.memo_opcode(opcode),
            b'c' | 0x93 | b'i' => self.global(opcode),
            b'R' | 0x81 | 0x92 | b'o' => self.call(opcode),
            b'b' => self.build(),
            b'Q' => self.persistent(),
            b'a' | b'e' | b's' | b'u' | 0x90 => self.fill(opcode),
            b']' | b'l' | b'}' | b'd' | 0x8f | 0x91 | b')' | b't' | 0x85..=0x87 => self.container(opcode),
            _ => self.scalar(opcode),
        }
    }

    fn protocol(&mut self) -> Result<(), String> {
        match self.reader.byte()? {
            2..=5 => Ok(()),
            version => Err(format!("pickle protocol {version}; torch.save writes 2 to 5")),
        }
    }

    fn memo_opcode(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            b'h' | b'j' => {
                let slot = if opcode == b'h' { u32::from(self.reader.byte()?) } else { self.reader.u32()? };
                let id = *self.memo.get(&slot).ok_or("a reference to an object that does not exist")?;
                self.stack.push(id)
            }
            _ => {
                let slot = match opcode {
                    b'q' => u32::from(self.reader.byte()?),
                    b'r' => self.reader.u32()?,
                    _ => self.memo.len() as u32,
                };
                if self.memo.len() >= MAX_ITEMS {
                    return Err(too_large());
                }
                let id = self.stack.peek()?;
                self.memo.insert(slot, id);
                Ok(())
            }
        }
    }

    /// GLOBAL, STACK_GLOBAL and INST name a class or function. Only the name is kept.
    fn global(&mut self, opcode: u8) -> Result<(), String> {
        let (module, name) = if opcode == 0x93 {
            let (name, module) = (self.stack.pop()?, self.stack.pop()?);
            (self.name(module)?, self.name(name)?)
        } else {
            (self.reader.line()?, self.reader.line()?)
        };
        if module.len() > MAX_NAME || name.len() > MAX_NAME {
            return Err(format!("a class name of more than {MAX_NAME} bytes, which no checkpoint has"));
        }
        if let (Some(id), b'c' | 0x93) = (getattr::named(&module, &name), opcode) {
            return self.stack.push(id);
        }
        if is_dangerous(&module, &name) {
            return Err(refusal(&format!("{module}.{name}")));
        }
        if opcode == b'i' {
            self.stack.pop_mark()?;
            return self.make(Object::Opaque(format!("{module}.{name}").into()));
        }
        self.make(Object::Global(format!("{module}.{name}").into()))
    }

    /// REDUCE, NEWOBJ, NEWOBJ_EX and OBJ call a class or function.
    fn call(&mut self, opcode: u8) -> Result<(), String> {
        if opcode == b'o' {
            let items = self.stack.pop_mark()?;
            let class = *items.first().ok_or("a call without a class")?;
            self.refuse_method(class)?;
            return self.make(Object::Opaque(rebuild::name_of(&self.objects, class)));
        }
        if opcode == 0x92 {
            self.stack.pop()?; // keyword arguments
        }
        let arguments = self.stack.pop()?;
        let callee = if opcode == b'R' { self.stack.callee()? } else { self.stack.pop()? };
        self.refuse_method(callee)?;
        if let Some(object) = getattr::call(&self.objects, callee, arguments)? {
            return self.make(object);
        }
        match rebuild::call(&self.objects, callee, arguments)? {
            rebuild::Called::Existing(id) => self.stack.push(id),
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

    /// Refuses a method in the place of the callee: no checkpoint calls one.
    fn refuse_method(&self, callee: Id) -> Result<(), String> {
        match &self.objects[callee as usize] {
            Object::Method(name) => Err(refusal(name)),
            _ => Ok(()),
        }
    }

    /// BUILD sets the state of an object. Those of arrays and of their types are kept, no other is needed.
    fn build(&mut self) -> Result<(), String> {
        let set = self.stack.pop()?;
        let target = self.stack.top()?;
        match &mut self.objects[target as usize] {
            Object::Array(array @ (ArrayRef::Empty | ArrayRef::State(_))) => *array = ArrayRef::State(set),
            Object::Dtype { state, .. } => *state = Some(set),
            _ => {}
        }
        Ok(())
    }

    fn persistent(&mut self) -> Result<(), String> {
        let id = self.stack.pop()?;
        match rebuild::persistent(&self.objects, id)? {
            rebuild::Called::Existing(id) => self.stack.push(id),
            rebuild::Called::New(object) => self.make(object),
        }
    }

    /// APPEND, APPENDS, SETITEM, SETITEMS and ADDITEMS add items to an object. Items of an opaque object are
    /// dropped.
    fn fill(&mut self, opcode: u8) -> Result<(), String> {
        let items = match opcode {
            b'a' => vec![self.stack.pop()?],
            b's' => {
                let (value, key) = (self.stack.pop()?, self.stack.pop()?);
                vec![key, value]
            }
            _ => self.stack.pop_mark()?,
        };
        let target = self.stack.top()?;
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
            _ => return Err("items added to an object that is not a container".to_owned()),
        }
        Ok(())
    }

    fn container(&mut self, opcode: u8) -> Result<(), String> {
        let object = match opcode {
            b')' => return self.stack.push(EMPTY_TUPLE),
            b']' => Object::List(Vec::new()),
            b'}' => Object::Dict(Vec::new()),
            0x8f => Object::Opaque("set".into()),
            b'l' => Object::List(self.stack.pop_mark()?),
            b't' => Object::Tuple(self.stack.pop_mark()?),
            0x91 => {
                self.stack.pop_mark()?;
                Object::Opaque("frozenset".into())
            }
            b'd' => {
                let items = self.stack.pop_mark()?;
                Object::Dict(items.as_chunks::<2>().0.iter().map(|&[key, value]| (key, value)).collect())
            }
            _ => Object::Tuple(self.stack.pop_last(usize::from(opcode - 0x84))?),
        };
        self.make(object)
    }

    fn scalar(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            b'N' => self.stack.push(NONE),
            0x88 => self.stack.push(TRUE),
            0x89 => self.stack.push(FALSE),
            b'K' => self.reader.byte().and_then(|v| self.make(Object::Int(i64::from(v)))),
            b'M' => {
                self.reader.array().and_then(|b| self.make(Object::Int(i64::from(u16::from_le_bytes(b)))))
            }
            b'J' => {
                self.reader.array().and_then(|b| self.make(Object::Int(i64::from(i32::from_le_bytes(b)))))
            }
            0x8a => self.reader.byte().and_then(|n| self.long(usize::from(n))),
            0x8b => self.reader.u32().and_then(|n| self.long(n as usize)),
            b'G' => self.reader.take(8).map(drop).and_then(|()| self.stack.push(NUMBER)),
            0x8c => self.reader.byte().and_then(|n| self.text(u64::from(n))),
            b'X' => self.reader.u32().and_then(|n| self.text(u64::from(n))),
            0x8d => self.reader.u64().and_then(|n| self.text(n)),
            b'U' | b'C' => self.reader.byte().and_then(|n| self.bytes(opcode, u64::from(n))),
            b'T' | b'B' => self.reader.u32().and_then(|n| self.bytes(opcode, u64::from(n))),
            0x8e | 0x96 => self.reader.u64().and_then(|n| self.bytes(opcode, n)),
            _ => Err(format!(
                "pickle opcode 0x{opcode:02x} at byte {}, which no checkpoint has",
                self.reader.position() - 1
            )),
        }
    }

    fn long(&mut self, length: usize) -> Result<(), String> {
        let bytes = self.reader.take(length)?;
        let object = match bytes.last() {
            None => Object::Int(0),
            Some(&last) if length <= 8 => {
                let mut wide = if last >= 0x80 { [0xff; 8] } else { [0; 8] };
                wide[..length].copy_from_slice(bytes);
                Object::Int(i64::from_le_bytes(wide))
            }
            Some(_) => Object::Long(bytes),
        };
        self.make(object)
    }

    /// A text. Python writes surrogates, too, which are not UTF-8 and are replaced here.
    fn text(&mut self, length: u64) -> Result<(), String> {
        let bytes = self.reader.value(length)?;
        let text = match str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => {
                self.reader.count(bytes.len())?;
                String::from_utf8_lossy(bytes)
            }
        };
        self.make(Object::Text(text))
    }

    /// Bytes, or a string of Python 2.
    fn bytes(&mut self, opcode: u8, length: u64) -> Result<(), String> {
        let bytes = self.reader.value(length)?;
        let text = if matches!(opcode, b'U' | b'T') { str::from_utf8(bytes).ok() } else { None };
        self.make(Object::Bytes { bytes, text })
    }

    fn name(&self, id: Id) -> Result<String, String> {
        match self.objects[id as usize].text() {
            Some(text) if text.len() <= MAX_NAME => Ok(text.to_owned()),
            _ => Err(format!("a class name that is not a text of up to {MAX_NAME} bytes")),
        }
    }

    fn make(&mut self, object: Object<'a>) -> Result<(), String> {
        if self.objects.len() >= MAX_ITEMS {
            return Err(too_large());
        }
        self.objects.push(object);
        self.stack.push(self.objects.len() as Id - 1)
    }
}
