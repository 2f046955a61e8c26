// Package purgatory is the service that holds git repositories, and the events that wait for git
// data. It needs a NATS server that the other services share, and a git volume that its other
// replicas share.
//
// The parts of a worker, and which knows which, are in parts.go.
//
//   - A worker claims shards of identifiers (shards.go). It may write while the lease of
//     a shard lasts, and lets one writer at a time into each repository.
//   - It follows what is held (bucket grasp-held) and what is accepted (the log). What may change a
//     repository goes into one delayed queue: an event that came, went or is overdue, a fetch that
//     brought something, a push that ended, shards that came.
//   - reconcile takes an identifier from the queue with the repositories that are due. It locks them,
//     reads the events of the identifier, and lets repostate compute which repositories there are,
//     who speaks for them, and what their references must be.
//   - Package release makes the references so, as far as the objects are there: repositories of one
//     maintainer group share theirs. What is complete then is offered to ingest. Released is what
//     ingest has committed; until then the event stays held.
//   - What is missing is hunted: package hunt decides which git server is asked next, package fetch
//     asks it for exactly those objects and has git check the pack in quarantine. What came is
//     reconciled.
//   - Package githttp serves fetches and pushes to the front doors. A push is read whole, authorised
//     by the same view of the events, taken by git receive-pack, and released before the user's
//     terminal says that it is done.
//   - Package repository is all of this on disk: plain bare repositories and the git processes that
//     work on them, within limits. Housekeeping is git gc, once a day where something changed.
package purgatory
