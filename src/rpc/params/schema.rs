//! Schemas of fields with a second name.

use schemars::Schema;

/// Returns a transformation that gives fields of an object their second names.
pub fn add_aliases(aliases: &'static [(&'static str, &'static str)]) -> impl Fn(&mut Schema) {
    move |schema| {
        let Some(fields) = schema.get_mut("properties").and_then(|fields| fields.as_object_mut()) else { return };
        for (field, alias) in aliases {
            if let Some(value) = fields.get(*field).cloned() {
                fields.insert((*alias).to_owned(), value);
            }
        }
    }
}
