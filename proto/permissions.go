package proto

import (
	"slices"
	"time"
)

// Users of the NATS server, one for each service: its name is the service's.
const (
	UserGateway   = "gateway"
	UserIngest    = "ingest"
	UserPurgatory = GroupShards
	UserDiscovery = "discovery"
	UserRelayconn = GroupRelays
	// UserOperator is for people: it reads everything, writes nothing, and may ask purgatory to
	// remove or keep repositories that are not hosted any more.
	UserOperator = "operator"
	// UserImport is for `tendril import`, which offers events on the lane of older events and reads
	// nothing. Whoever has this login is trusted to have checked their signatures.
	UserImport = "import"
	// UserTendril is for a process that runs several services over one connection. It may do what
	// each of them may.
	UserTendril = "tendril"
)

// AnswerTime is how long a service may answer a request that it was sent. Questions wait in turn,
// and the longest answer takes a minute.
const AnswerTime = 5 * time.Minute

// Permissions are what a user may do on the NATS server. Subjects may have wildcards. What is not
// allowed is refused.
type Permissions struct {
	User      string
	Publish   []string
	Subscribe []string
	// Answers: the user may also publish to the reply subject of any message that it was sent, for
	// [AnswerTime].
	Answers bool
}

// Users returns every user and what it may do, in a fixed order. NATS cannot check everything; what
// is left open is described in docs/security.md.
func Users() []Permissions {
	services := []Permissions{gateway(), ingest(), purgatory(), discovery(), relayconn()}
	all := Permissions{User: UserTendril}
	for i, s := range services {
		all.Publish = append(all.Publish, s.Publish...)
		all.Subscribe = append(all.Subscribe, s.Subscribe...)
		all.Answers = all.Answers || s.Answers
		services[i].Subscribe = append(s.Subscribe, InboxPrefix(s.User)+".>", "grasp.stored.>", "grasp.held.>", "grasp.claim.>", "grasp.worker.>")
	}
	all.Subscribe = append(all.Subscribe, InboxPrefix(UserTendril)+".>", "grasp.stored.>", "grasp.held.>", "grasp.claim.>", "grasp.worker.>")
	users := append(services, operator(), importer(), all)
	for i := range users {
		users[i].Publish, users[i].Subscribe = sorted(users[i].Publish), sorted(users[i].Subscribe)
	}
	return users
}

// PermissionsOf returns what a user may do; nothing if there is no such user.
func PermissionsOf(user string) Permissions {
	for _, p := range Users() {
		if p.User == user {
			return p
		}
	}
	return Permissions{}
}

// InboxPrefix begins the subjects on which a user gets the answers to its requests. Each has its
// own, so that no service reads what another is answered.
func InboxPrefix(user string) string { return "_INBOX." + user }

func gateway() Permissions {
	return Permissions{
		User:      UserGateway,
		Publish:   join(followStream(StreamEvents), offer(StreamUser, LaneUser), watchGroup(GroupShards), receipts()),
		Subscribe: join(verdicts(), answerEvents()),
		Answers:   true,
	}
}

func purgatory() Permissions {
	return Permissions{
		User: UserPurgatory,
		Publish: join(followStream(StreamEvents), followStream(KVStream(BucketHeld)), offer(StreamRelease, LaneRelease),
			joinGroup(GroupShards), askEvents(), []string{prefixGit + ">", prefixRepoAnswer + "*", SubjectMessageOf(StreamEvents)},
			getKey(BucketUsage, ">"), []string{KVSubject(BucketUsage, ">")}),
		Subscribe: join(verdicts(), askRepos()),
	}
}

func discovery() Permissions {
	return Permissions{
		User: UserDiscovery,
		Publish: join(followStream(StreamEvents), followStream(KVStream(BucketHeld)), followStream(StreamTargets),
			askEvents(), []string{AnyTarget, AnyWanted, SubjectMessageOf(StreamEvents), SubjectMessageOf(StreamTargets)}),
	}
}

func relayconn() Permissions {
	return Permissions{
		User: UserRelayconn,
		Publish: join(followStream(StreamEvents), followStream(StreamTargets),
			offer(StreamLive, LaneSyncLive), offer(StreamSync, LaneSyncHistoric, LaneSyncDaily), joinGroup(GroupRelays),
			getKey(BucketRelays, ">"), askEvents(), []string{KVSubject(BucketRelays, ">"), SubjectQueryReconcile}),
		Subscribe: verdicts(),
	}
}

// ingest makes every stream, bucket and durable consumer, writes the log and what belongs to it,
// and answers queries. It may also restore the streams from a backup.
func ingest() Permissions {
	p := Permissions{
		User: UserIngest,
		Publish: join(followStream(StreamEvents), followStream(KVStream(BucketHeld)), followStream(StreamRejected), followStream(KVStream(BucketUsage)),
			[]string{
				prefixEvent + ">", SubjectEventsMark, KVSubject(BucketHeld, ">"), prefixRejected + ">", KVSubject(BucketUsage, ">"), jsAPI + "INFO",
				prefixVerdict + "*", SubjectWriterTurn,
				api("CONSUMER.UNPIN", StreamWriter, ConsumerTurn),
				// For candidates and the turn. The whole space, because the server otherwise keeps
				// in mind the reply subject of every message of the log that it sends, as one that
				// may be answered.
				jsAck + ">",
			}),
		Subscribe: join(answerEvents(), []string{SubjectQueryIDs, SubjectQueryReconcile, StoredSubject(KVStream(BucketUsage), ">")}, describe(ServiceQuery)),
		Answers:   true,
	}
	for _, cfg := range Streams(DefaultSizing()) {
		p.Publish = append(p.Publish, api("STREAM.INFO", cfg.Name), api("STREAM.CREATE", cfg.Name), api("STREAM.UPDATE", cfg.Name),
			api("STREAM.RESTORE", cfg.Name), "$JS.SNAPSHOT.RESTORE."+cfg.Name+".*")
	}
	for _, name := range Retired() {
		p.Publish = append(p.Publish, api("STREAM.DELETE", name))
	}
	for stream, consumers := range Consumers(DefaultSizing()) {
		for _, cfg := range consumers {
			p.Publish = append(p.Publish, api("CONSUMER.CREATE", stream, cfg.Durable), api("CONSUMER.INFO", stream, cfg.Durable),
				api("CONSUMER.MSG.NEXT", stream, cfg.Durable))
		}
	}
	return p
}

// askEvents allows to ask those who have an index of the log.
func askEvents() []string { return []string{SubjectQueryKnown, SubjectQueryEvents} }

// answerEvents allows to be one of them.
func answerEvents() []string {
	return join([]string{SubjectQueryKnown, SubjectQueryEvents}, describe(ServiceEvents))
}

// describe allows a micro service to say what it is.
func describe(service string) (subjects []string) {
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		subjects = append(subjects, microAPI+verb, microAPI+verb+"."+service, microAPI+verb+"."+service+".*")
	}
	return subjects
}

// receipts allows to acknowledge messages of streams whose readers need not. It lets nobody do
// anything, but the server otherwise keeps in mind the reply subject of every message that it sends
// to a user who answers, as one that may be answered.
func receipts() (subjects []string) {
	for _, stream := range []string{StreamEvents, KVStream(BucketClaims), KVStream(BucketWorkers)} {
		subjects = append(subjects, jsAck+stream+".>", jsAck+"*.*."+stream+".>")
	}
	return subjects
}

// operator may listen to everything, so that `nats sub '>'` and the programs of the nats command
// line work without more, and ask purgatory about repositories, which may have those removed that
// their owners gave up. On streams of candidates and on the writer's turn it may make no
// consumer: there, who reads takes away.
func operator() Permissions {
	p := Permissions{
		User: UserOperator,
		Publish: []string{
			jsAPI + "INFO", jsAPI + "STREAM.NAMES", jsAPI + "STREAM.LIST", api("STREAM.INFO", "*"), api("STREAM.MSG.GET", "*"),
			api("DIRECT.GET", "*"), api("DIRECT.GET", "*", ">"),
			api("CONSUMER.NAMES", "*"), api("CONSUMER.LIST", "*"), api("CONSUMER.INFO", "*", "*"),
			SubjectQueryIDs, SubjectQueryReconcile, SubjectQueryKnown, SubjectQueryEvents, microAPI + ">",
		},
		Subscribe: []string{">"},
	}
	p.Publish = append(p.Publish, askRepos()...)
	for _, cfg := range Streams(DefaultSizing()) {
		if len(Consumers(DefaultSizing())[cfg.Name]) > 0 {
			continue
		}
		p.Publish = append(p.Publish, api("CONSUMER.CREATE", cfg.Name, ">"), api("CONSUMER.MSG.NEXT", cfg.Name, "*"),
			api("STREAM.SNAPSHOT", cfg.Name), "$JS.SNAPSHOT.ACK."+cfg.Name+".>")
		p.Publish = append(p.Publish, flowControl(cfg.Name)...)
	}
	return p
}

// importer may offer events as relayconn does, and hear how they ended.
func importer() Permissions {
	return Permissions{
		User:      UserImport,
		Publish:   offer(StreamSync, LaneSyncHistoric),
		Subscribe: append(verdicts(), InboxPrefix(UserImport)+".>"),
	}
}

// Prefixes of NATS itself.
const (
	jsAPI    = "$JS.API."
	jsAck    = "$JS.ACK."
	jsFlow   = "$JS.FC."
	microAPI = "$SRV."
)

// SubjectMessageOf is where JetStream is asked for a message of a stream.
func SubjectMessageOf(stream string) string { return api("STREAM.MSG.GET", stream) }

// api is a subject of JetStream's API.
func api(verb string, tokens ...string) string {
	subject := jsAPI + verb
	for _, t := range tokens {
		subject += "." + t
	}
	return subject
}

// readBy allows consumers of a stream that belong to one reader: whose name does not matter and
// which leave nothing behind. filter is the subject that they ask for; ">" for any.
func readBy(stream, filter string) []string {
	return []string{
		api("STREAM.INFO", stream), api("CONSUMER.CREATE", stream, "*", filter), api("CONSUMER.MSG.NEXT", stream, "*"),
		api("CONSUMER.DELETE", stream, "*"),
	}
}

// followStream allows to follow a stream as lib/bus and lib/eventdb do, whole or by subject, and to
// ask for its last message, which tells how far behind it a reader is.
func followStream(stream string) []string {
	return append(readBy(stream, ">"), api("CONSUMER.CREATE", stream, "*"), api("DIRECT.GET", stream, ">"), api("DIRECT.GET", stream), SubjectMessageOf(stream))
}

// followKeys allows to follow keys of a bucket.
func followKeys(bucket, keys string) []string {
	stream := KVStream(bucket)
	return append(readBy(stream, KVSubject(bucket, keys)), api("DIRECT.GET", stream), SubjectMessageOf(stream))
}

// flowControl allows to answer a stream's consumers that push, as `nats kv watch` makes them, in
// both forms that servers have.
func flowControl(stream string) []string {
	return []string{jsFlow + stream + ".>", jsFlow + "*.*." + stream + ".>"}
}

// getKey allows to read single keys of a bucket.
func getKey(bucket, keys string) []string {
	stream := KVStream(bucket)
	return []string{api("STREAM.INFO", stream), api("DIRECT.GET", stream, KVSubject(bucket, keys))}
}

// watchGroup allows to see who of a group is there and who works on what.
func watchGroup(group string) []string {
	return join(followKeys(BucketWorkers, ClaimKey(group, ">")), followKeys(BucketClaims, ClaimKey(group, ">")))
}

// joinGroup allows to be a worker of a group and to claim its keys.
func joinGroup(group string) []string {
	keys := ClaimKey(group, ">")
	return join(watchGroup(group), getKey(BucketWorkers, keys), getKey(BucketClaims, keys),
		[]string{KVSubject(BucketWorkers, keys), KVSubject(BucketClaims, keys)})
}

// offer allows to hand candidates to ingest, through the stream of these lanes.
func offer(stream string, lanes ...Lane) []string {
	subjects := []string{api("STREAM.INFO", stream)}
	for _, l := range lanes {
		subjects = append(subjects, l.Subject())
	}
	return subjects
}

// verdicts are where those who offer candidates are told how they ended. Each sender has a subject
// of its own below it, which nobody can know beforehand.
func verdicts() []string { return []string{prefixVerdict + "*"} }

// askRepos are the questions of operators to purgatory about repositories.
func askRepos() (subjects []string) {
	for _, verb := range RepoVerbs() {
		subjects = append(subjects, prefixRepo+string(verb)+".*")
	}
	return subjects
}

func join(lists ...[]string) []string { return slices.Concat(lists...) }

func sorted(subjects []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(subjects)))
}
