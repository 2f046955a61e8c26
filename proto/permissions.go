package proto

import (
	"slices"
	"strings"
	"time"
)

// Users of the NATS server, one for each service: its name is the service's.
const (
	UserGateway   = "gateway"
	UserIngest    = "ingest"
	UserPurgatory = GroupShards
	UserDiscovery = "discovery"
	UserRelayconn = GroupRelays
	// UserOperator is for people: it reads everything, writes bans alone, and may ask purgatory to
	// remove or keep repositories that are not hosted any more.
	UserOperator = "operator"
	// UserImport is for `tendril import`, which offers events on the lane of older events and reads
	// nothing. A holder of this login is trusted to have checked their signatures.
	UserImport = "import"
	// UserTendril is for a process that runs several services over one connection. It may do what
	// each of them may.
	UserTendril = "tendril"
)

// AccountCore is the account of the NATS server that has the streams. Ingest, operators and
// processes with several services are in it; every other user has an account of its own.
//
// A request in NATS names the subject of its answer, and the server does not check it. So a user of
// the core account can have answers, and messages that it asks for, published on any subject of
// that account. From another account only the subjects that it imports reach the core account; all
// answers come back to the account that asked.
const AccountCore = "TENDRIL"

// AccountOf is the account of a user.
func AccountOf(user string) string {
	switch user {
	case UserIngest, UserOperator, UserTendril:
		return AccountCore
	}
	return strings.ToUpper(user)
}

// CoreAPI is the prefix under which users of other accounts reach JetStream in the core account:
// under its own name it is that of their own account, which has none.
const CoreAPI = "TENDRIL.API"

// LocalSubjects are the names that a subject of the core account has for a user.
func LocalSubjects(user, subject string) []string {
	rest, isAPI := strings.CutPrefix(subject, jsAPI)
	switch {
	case AccountOf(user) == AccountCore:
		return []string{subject}
	case isAPI:
		return []string{CoreAPI + "." + rest}
	case strings.HasPrefix(subject, "$KV."):
		return []string{subject, CoreAPI + "." + subject} // the client of buckets puts the prefix before
	}
	return []string{subject}
}

// AnswerTime is how long a service may answer a request that it was sent. Questions wait in turn,
// and the longest answer takes a minute.
const AnswerTime = 5 * time.Minute

// Permissions are what a user may do on the NATS server. Subjects may have wildcards. What is not
// allowed is refused. A user outside of the core account imports these subjects, and no others.
type Permissions struct {
	User      string
	Publish   []string
	Subscribe []string // its inboxes are not among them
	// Answers: the user may also publish to the reply subject of any message that it was sent, for
	// [AnswerTime].
	Answers bool
}

// Users returns every user and what it may do, in a fixed order. NATS cannot check everything; what
// is left open is described in docs/security.md.
func Users() []Permissions {
	users := []Permissions{gateway(), ingest(), purgatory(), discovery(), relayconn(), operator(), importer()}
	all := Permissions{User: UserTendril}
	for _, s := range users[:5] {
		all.Publish = append(all.Publish, s.Publish...)
		all.Subscribe = append(all.Subscribe, s.Subscribe...)
		all.Answers = all.Answers || s.Answers
	}
	users = append(users, all)
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

// AnswersOften reports whether a request on a subject may have more than one answer.
func AnswersOften(subject string) bool { return strings.HasPrefix(subject, api("DIRECT.GET")) }

// InboxPrefix begins the subjects on which a user gets the answers to its requests. Each has its
// own, so that no service reads what another is answered.
func InboxPrefix(user string) string { return "_INBOX." + user }

// access is what a user may publish and subscribe to for one purpose.
type access struct{ publish, subscribe []string }

func permissions(user string, parts ...access) Permissions {
	p := Permissions{User: user}
	for _, a := range parts {
		p.Publish, p.Subscribe = append(p.Publish, a.publish...), append(p.Subscribe, a.subscribe...)
	}
	return p
}

func publish(subjects ...string) access { return access{publish: subjects} }

// progress allows to tell how far a process has read.
func progress() access { return publish(SubjectProgress) }

func gateway() Permissions {
	return permissions(UserGateway, progress(), follow(StreamEvents, ">"), follow(KVStream(BucketBans), ">"), offer(StreamUser, LaneUser),
		watchGroup(GroupShards), publish(SubjectManage))
}

func purgatory() Permissions {
	return permissions(UserPurgatory, progress(), follow(StreamEvents, ">"), follow(KVStream(BucketBans), ">"), follow(KVStream(BucketHeld), ">"), offer(StreamRelease, LaneRelease),
		joinGroup(GroupShards), askEvents(), getKey(BucketUsage, ">"),
		publish(KVSubject(BucketUsage, ">"), prefixGit+">", prefixRepoAnswer+"*"), access{subscribe: askRepos()})
}

func discovery() Permissions {
	return permissions(UserDiscovery, progress(), follow(StreamEvents, ">"), follow(KVStream(BucketBans), ">"), follow(KVStream(BucketHeld), ">"), follow(StreamTargets, ">"),
		askEvents(), publish(AnyTarget, AnyWanted))
}

func relayconn() Permissions {
	return permissions(UserRelayconn, progress(), follow(StreamEvents, ">"), follow(KVStream(BucketBans), ">"), follow(StreamTargets, ">"),
		offer(StreamLive, LaneSyncLive), offer(StreamSync, LaneSyncHistoric, LaneSyncDaily), joinGroup(GroupRelays),
		getKey(BucketRelays, ">"), askEvents(), publish(KVSubject(BucketRelays, ">"), SubjectQueryReconcile))
}

// importer may offer events as relayconn does, and hear how they ended.
func importer() Permissions { return permissions(UserImport, offer(StreamSync, LaneSyncHistoric)) }

// ingest makes every stream, bucket and durable consumer, writes the log and what belongs to it,
// and answers queries. It may also restore the streams from a backup.
func ingest() Permissions {
	p := permissions(UserIngest, progress(), follow(StreamEvents, ">"), follow(KVStream(BucketHeld), ">"), follow(StreamRejected, ">"), follow(KVStream(BucketUsage), ">"),
		follow(KVStream(BucketBans), ">"), publish(KVSubject(BucketBans, ">")),
		publish(prefixEvent+">", SubjectEventsMark, KVSubject(BucketHeld, ">"), prefixRejected+">", prefixVerdict+"*",
			KVSubject(BucketUsage, ">"), jsAPI+"INFO",
			// For candidates. The whole space, because the server otherwise keeps in mind
			// the reply subject of every message that it sends, as one that may be answered.
			jsAck+">"),
		joinGroup(GroupWriter),
		access{subscribe: []string{SubjectQueryEvents, SubjectQueryIDs, SubjectQueryReconcile, SubjectWhy, SubjectManage}},
		access{subscribe: describe(ServiceEvents)}, access{subscribe: describe(ServiceQuery)})
	p.Answers = true
	for _, cfg := range Streams(DefaultSizing()) {
		p.Publish = append(p.Publish, api("STREAM.INFO", cfg.Name), api("STREAM.CREATE", cfg.Name), api("STREAM.UPDATE", cfg.Name),
			api("STREAM.RESTORE", cfg.Name), "$JS.SNAPSHOT.RESTORE."+cfg.Name+".*")
	}
	for stream, consumers := range Consumers(DefaultSizing()) {
		for _, cfg := range consumers {
			p.Publish = append(p.Publish, api("CONSUMER.CREATE", stream, cfg.Durable), api("CONSUMER.INFO", stream, cfg.Durable),
				api("CONSUMER.MSG.NEXT", stream, cfg.Durable))
		}
	}
	return p
}

// askEvents allows to ask ingest which events are accepted.
func askEvents() access { return publish(SubjectQueryEvents) }

// describe allows a micro service to say what it is.
func describe(service string) (subjects []string) {
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		subjects = append(subjects, microAPI+verb, microAPI+verb+"."+service, microAPI+verb+"."+service+".*")
	}
	return subjects
}

// operator may listen to everything, so that `nats sub '>'` and the programs of the nats command
// line work without more, and ask purgatory about repositories, which may have those removed that
// their owners gave up. It writes bans. On streams of candidates it may make no consumer: there, who
// reads takes away.
func operator() Permissions {
	p := Permissions{
		User: UserOperator,
		Publish: []string{
			jsAPI + "INFO", jsAPI + "STREAM.NAMES", jsAPI + "STREAM.LIST", api("STREAM.INFO", "*"), api("STREAM.MSG.GET", "*"),
			api("DIRECT.GET", "*"), api("DIRECT.GET", "*", ">"),
			api("CONSUMER.NAMES", "*"), api("CONSUMER.LIST", "*"), api("CONSUMER.INFO", "*", "*"),
			SubjectQueryIDs, SubjectQueryReconcile, SubjectQueryEvents, SubjectWhy, microAPI + ">",
		},
		Subscribe: []string{">"},
	}
	p.Publish = append(p.Publish, askRepos()...)
	p.Publish = append(p.Publish, KVSubject(BucketBans, ">"))
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

// follow allows to follow a stream as lib/bus does: to ask for its messages, for its end and for
// the last message of a subject, and to be told of what it stores on the subjects of a filter.
func follow(stream, filter string) access {
	return access{
		publish:   []string{api("STREAM.INFO", stream), api("DIRECT.GET", stream), api("DIRECT.GET", stream, filter), SubjectMessageOf(stream)},
		subscribe: []string{StoredSubject(stream, filter)},
	}
}

// flowControl allows to answer a stream's consumers that push, as `nats kv watch` makes them, in
// both forms that servers have.
func flowControl(stream string) []string {
	return []string{jsFlow + stream + ".>", jsFlow + "*.*." + stream + ".>"}
}

// getKey allows to read single keys of a bucket.
func getKey(bucket, keys string) access {
	stream := KVStream(bucket)
	return publish(api("STREAM.INFO", stream), api("DIRECT.GET", stream, KVSubject(bucket, keys)))
}

// watchGroup allows to see who of a group is there and who works on what.
func watchGroup(group string) access {
	keys := ClaimKey(group, ">")
	workers, claims := KVSubject(BucketWorkers, keys), KVSubject(BucketClaims, keys)
	a, b := follow(KVStream(BucketWorkers), workers), follow(KVStream(BucketClaims), claims)
	return access{publish: slices.Concat(a.publish, b.publish), subscribe: slices.Concat(a.subscribe, b.subscribe)}
}

// joinGroup allows to be a worker of a group and to claim its keys.
func joinGroup(group string) access {
	keys := ClaimKey(group, ">")
	a := watchGroup(group)
	a.publish = slices.Concat(a.publish, getKey(BucketWorkers, keys).publish, getKey(BucketClaims, keys).publish,
		[]string{KVSubject(BucketWorkers, keys), KVSubject(BucketClaims, keys)})
	return a
}

// offer allows to hand candidates to ingest, through the stream of these lanes, and to be told how
// they ended: each sender has a subject of its own below grasp.verdict, which no other can guess.
func offer(stream string, lanes ...Lane) access {
	a := access{publish: []string{api("STREAM.INFO", stream)}, subscribe: []string{prefixVerdict + "*"}}
	for _, l := range lanes {
		a.publish = append(a.publish, l.Subject())
	}
	return a
}

// askRepos are the questions of operators to purgatory about repositories.
func askRepos() (subjects []string) {
	for _, verb := range RepoVerbs() {
		subjects = append(subjects, RepoSubject(verb))
	}
	return subjects
}

func sorted(subjects []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(subjects)))
}
