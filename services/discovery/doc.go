// Package discovery is the service that decides which relay should be asked for what. It needs a
// NATS server that the other services share.
//
//   - It follows the announcements and deletion requests of the log, and the bucket grasp-held, and
//     folds them into the announcements that are accepted or held, by identifier and owner.
//   - What is wanted of a repository follows from them alone: everything of what is served and of
//     its maintainers, by the relays that its announcement lists; of what is held only the states of
//     its maintainers, which may bring the git data. Bootstrap relays are wanted always.
//   - People who take part in threads, and owners and maintainers, have relay lists, which lead to
//     further relays (GRASP-03, further.go).
//   - Wanted repositories are turned into targets, one for each relay. Relays are bounded, because
//     each is a connection: where more are listed, those who listed them have equal shares.
//   - After a change, at the end of a short window, the targets are compared with the stream
//     GRASP_TARGETS, and only what is different is written, each message on the condition that the
//     last one of its subject is the one that was read. A target that is gone leaves an empty
//     message, for relay workers to see.
//   - Any number of replicas run. Each works out the same; the first to write a change wins, and the
//     others read it and find nothing left to do.
//   - Before a publication everything is read that is held, and then everything that is accepted: an
//     event that is released moves from the one to the other, and no target may lose its repository
//     in between.
package discovery
