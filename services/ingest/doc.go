// Package ingest is the service that decides what is accepted. It alone writes the log, the held
// events and the rejected ids.
//
//   - Any number of replicas run. Each follows the log (into its index), the bucket grasp-held and
//     the stream of rejected ids, and answers questions about them. One holds the claim on the log
//     and writes (package writer); the others stand by.
//   - Candidates come by four streams: from users, from purgatory (releases), live from relays, and
//     from the sync of the past. The first three are urgent: batches of them and of the last
//     alternate.
//   - Each message is a pack of events. Ids are checked, and the signatures of events that decide
//     about others; the edges have checked all of them before.
//   - Package policy decides one event after the other. A decision is a value: accept, hold for git
//     data, reject, and which held events go or are decided next. It is made on a draft, which is
//     the index and the held events with all earlier decisions that are not stored yet.
//   - A batch is committed: first the log, then the held events, then the rejections, each on the
//     head that it was decided on. A new writer moves both heads before it decides anything, so
//     that an older one can commit nothing more.
//   - When the commit is done the packs are acknowledged, the senders hear their verdicts, and the
//     index has the events at once. A commit that fails ends the term: the packs are given back,
//     and the next term begins with what the streams say.
//   - Rejected events that miss something are parked whole for two minutes, and their ids are
//     remembered for a week, both by what they miss. When that arrives they are decided again.
//   - Package known answers relay workers which of a relay's events need not be fetched.
package ingest
