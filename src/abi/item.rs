//! Items of an ABI in JSON.

use std::borrow::Cow;

use alloy_json_abi::{AbiItem, Error as AbiError, Event, Function};
use serde::{Deserialize, de::Error};

use crate::objects;

/// The type of an item.
#[derive(Deserialize)]
struct ItemType<'a> {
    #[serde(rename = "type", borrow)]
    name: Cow<'a, str>,
}

/// Reads a function, an event or an error from the JSON of an item. Returns `None` for another item, which decodes nothing.
///
/// The item is read in two passes, by its type, because [`AbiItem`] itself takes arrays for its parameters, which are objects.
///
/// # Errors
///
/// Returns the error of the parser, or that no item has this type.
pub fn read_item(item: &str) -> serde_json::Result<Option<AbiItem<'static>>> {
    let ItemType { name } = objects::from_str(item)?;
    Ok(match name.as_ref() {
        "function" => Some(objects::from_str::<Function>(item)?.into()),
        "event" => Some(objects::from_str::<Event>(item)?.into()),
        "error" => Some(objects::from_str::<AbiError>(item)?.into()),
        "constructor" | "fallback" | "receive" => None,
        other => return Err(Error::unknown_variant(other, ITEM_TYPES)),
    })
}

/// The types of items.
const ITEM_TYPES: &[&str] = &["function", "event", "error", "constructor", "fallback", "receive"];
