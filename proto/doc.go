// Package proto is the contract between Tendril's services: what the bus carries, as data and
// types.
//
// The services never import each other; they meet on the bus, and everything that they must agree
// on to do so stands here: streams and buckets (streams.go), subjects and keys (subjects.go) with
// the reversible encodings that keep foreign strings harmless in them (encoding.go), headers
// (headers.go) and the JSON of every message (messages.go). asyncapi.yaml describes the same for
// readers and tools that are not Go; a test holds the two together.
package proto
