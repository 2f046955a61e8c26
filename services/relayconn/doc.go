// Package relayconn is the service that keeps connections to other relays. It needs a NATS server
// that the other services share.
//
// Discovery publishes which relays are targets and which repositories each of them should have. A
// worker follows that (Targets), claims its share of the relays and runs one relayWorker for each:
// it connects, waits out failures by package health, and writes down in grasp-relays how the relay
// stands, so that a successor goes on there. On each connection a session talks. It compares what
// is wanted with what was asked for (the three-way diff, session.Diff), subscribes to what comes
// from now on, and then asks for the past: by NIP-77 where something is known, else by REQ, page by
// page (session.Walk). One connection of a worker at a time walks the past of a repository
// (session.HistoryCoordinator). Every refusal, in any words, is read by wire.ReadRefusal; what
// follows from it is decided in session's refusal.go. A batch is confirmed when all of its requests
// have ended and every event that they brought has a verdict. What was to come live and did not is
// asked for as the past.
//
// Relays that people list (GRASP-03) are visited once a day for the past (dailyVisits), under a claim
// of their own.
//
// The path of one event from a foreign relay to the log:
//
//	wire.Conn.Read           one message of the WebSocket, bounded
//	wire.Parse               EVENT, strictly; the signature is not checked yet
//	session.Session.hear     the request that it belongs to
//	session.hearEvent        it matches what was asked for, is fresh, and is not known
//	intake.Stream.Take       joins copies from other relays; waits for room
//	intake.Intake.work       in batches, live before past
//	intake.Intake.ask        is it accepted already? The index or ingest says so
//	intake.Intake.decide     verified once and offered once, though several relays brought it
//	candidates.Sender.Offer  many events in one message, sent again until they have verdicts
//	ingest's writer          verifies, decides, and appends to the log in one atomic batch
//	session.Session.judged   the verdict: the batch has one event less to wait for
package relayconn
