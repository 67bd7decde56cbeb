//! Figures as people and other programs read them: tables, pictures, CSV, the report. Nothing here runs a guest.

pub(crate) mod cases;
pub(crate) mod csv;
pub(crate) mod export;
pub(crate) mod plot;
pub(crate) mod profile;
pub(crate) mod published;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod top;
pub(crate) mod worst;
