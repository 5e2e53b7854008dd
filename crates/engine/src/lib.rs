//! The whole life of a request: parse, classify, submit, dispatch, complete, retire.
#![forbid(unsafe_code)]
