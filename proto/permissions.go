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
	// Serve are subjects of requests that it hears and answers. Where its account is another one than
	// the core, the core imports them as services of that account: a request that has come to the core
	// from a third account is not passed on as a message of a stream.
	Serve []string
	// Answers: the user may also publish to the reply subject of any message that it was sent, for
	// [AnswerTime].
	Answers bool
}

// Users returns every user and what it may do, in a fixed order. NATS cannot check everything; what
// is left open is described in docs/security.md.
func Users() []Permissions {
	services := []Permissions{gateway(), ingest(), purgatory(), discovery(), relayconn()}
	return append(services, operator(), importer(), permissions(UserTendril, services...))
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
// A question has, until it is answered, a sign every second that a replica works on it.
func AnswersOften(subject string) bool {
	return strings.HasPrefix(subject, api("DIRECT.GET")) ||
		slices.Contains([]string{SubjectQueryEvents, SubjectQueryIDs, SubjectManage}, subject)
}

// InboxPrefix begins the subjects on which a user gets the answers to its requests. Each has its
// own, so that no service reads what another is answered.
func InboxPrefix(user string) string { return "_INBOX." + user }

// permissions are all parts together.
func permissions(user string, parts ...Permissions) Permissions {
	p := Permissions{User: user}
	for _, part := range parts {
		p.Publish, p.Subscribe = append(p.Publish, part.Publish...), append(p.Subscribe, part.Subscribe...)
		p.Serve = append(p.Serve, part.Serve...)
		p.Answers = p.Answers || part.Answers
	}
	p.Publish, p.Subscribe = slices.Compact(slices.Sorted(slices.Values(p.Publish))),
		slices.Compact(slices.Sorted(slices.Values(p.Subscribe)))
	return p
}

func publish(subjects ...string) Permissions { return Permissions{Publish: subjects} }

// service may also read the log and the bans, and tell how far it has read.
func service(user string, parts ...Permissions) Permissions {
	return permissions(user, append(parts, publish(SubjectProgress), follow(StreamEvents, ">"),
		follow(KVStream(BucketBans), ">"))...)
}

func gateway() Permissions {
	return service(UserGateway, offer(StreamUser, LaneUser), watchGroup(GroupShards), publish(SubjectManage),
		askWorkers(PageVerbs()...),
		Permissions{Subscribe: []string{AnyEphemeral}})
}

func purgatory() Permissions {
	return service(UserPurgatory, follow(KVStream(BucketHeld), ">"), offer(StreamRelease, LaneRelease),
		joinGroup(GroupShards), getKey(BucketUsage, "git.>"),
		publish(SubjectQueryEvents, KVSubject(BucketUsage, "git.>"),
			AnyGit), Permissions{Serve: []string{RepoSubject("*", "*")}, Answers: true})
}

func discovery() Permissions {
	return service(UserDiscovery, follow(KVStream(BucketHeld), ">"), follow(StreamTargets, ">"),
		publish(SubjectQueryEvents, AnyTarget, AnyWanted))
}

func relayconn() Permissions {
	return service(UserRelayconn, follow(StreamTargets, ">"), offer(StreamLive, LaneSyncLive),
		offer(StreamSync, LaneSyncHistoric, LaneSyncDaily),
		joinGroup(GroupRelays), getKey(BucketRelays, ">"), publish(KVSubject(BucketRelays, ">"), SubjectQueryEvents,
			SubjectQueryIDs),
		Permissions{Subscribe: []string{SubjectFetch}})
}

// importer may offer events on a lane of its own, and hear how they ended.
func importer() Permissions { return permissions(UserImport, offer(StreamSync, LaneImport)) }

// ingest makes every stream, bucket and durable consumer, writes the log and what belongs to it,
// and answers queries. It may also restore the streams from a backup.
func ingest() Permissions {
	p := Permissions{
		Publish: []string{
			AnyEvent, AnyEphemeral, SubjectEventsMark, SubjectFetch, KVSubject(BucketHeld, ">"), prefixRejected +
				">", VerdictSubject("*"), KVSubject(BucketUsage, ">"),
			KVSubject(BucketBans, ">"), jsAPI + "INFO",
			// For candidates. The whole space, because the server otherwise keeps in mind the reply
			// subject of every message that it sends, as one that may be answered.
			jsAck + ">",
		},
		Subscribe: slices.Concat([]string{SubjectQueryEvents, SubjectQueryIDs, SubjectWhy, SubjectManage},
			describe(ServiceEvents), describe(ServiceQuery)),
		Answers: true,
	}
	for _, cfg := range Streams(DefaultSizing()) {
		p.Publish = append(p.Publish, api("STREAM.INFO", cfg.Name), api("STREAM.CREATE", cfg.Name),
			api("STREAM.UPDATE", cfg.Name),
			api("STREAM.RESTORE", cfg.Name), "$JS.SNAPSHOT.RESTORE."+cfg.Name+".*")
	}
	for stream, cfg := range Consumers(DefaultSizing()) {
		for _, verb := range []string{"CREATE", "INFO", "MSG.NEXT"} {
			p.Publish = append(p.Publish, api("CONSUMER."+verb, stream, cfg.Durable))
		}
	}
	return service(UserIngest, p, follow(KVStream(BucketHeld), ">"), follow(StreamRejected, ">"),
		follow(KVStream(BucketUsage), ">"), joinGroup(GroupWriter))
}

// describe allows a micro service to say what it is.
func describe(service string) (subjects []string) {
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		subjects = append(subjects, microAPI+verb, microAPI+verb+"."+service, microAPI+verb+"."+service+".*")
	}
	return subjects
}

// operator may listen to everything, so that `nats sub '>'` and the programs of the nats command
// line work without more, and ask purgatory about repositories, which may have those removed that
// their owners gave up. It writes bans. On streams of candidates it may make no consumer: there,
// who reads takes away.
func operator() Permissions {
	p := Permissions{
		Publish: []string{
			jsAPI + "INFO", jsAPI + "STREAM.NAMES", jsAPI + "STREAM.LIST", api("STREAM.INFO", "*"), api("STREAM.MSG.GET", "*"),
			api("DIRECT.GET", "*"), api("DIRECT.GET", "*", ">"), api("CONSUMER.NAMES", "*"), api("CONSUMER.LIST",
				"*"), api("CONSUMER.INFO", "*", "*"),
			SubjectQueryIDs, SubjectQueryEvents, SubjectWhy, microAPI + ">", KVSubject(BucketBans, ">"),
		},
		Subscribe: []string{">"},
	}
	for _, cfg := range Streams(DefaultSizing()) {
		if !IsCandidateStream(cfg.Name) {
			// The last two answer consumers that push, as `nats kv watch` makes them, in both forms
			// that servers have.
			p.Publish = append(p.Publish, api("CONSUMER.CREATE", cfg.Name, ">"), api("CONSUMER.MSG.NEXT", cfg.Name, "*"),
				api("STREAM.SNAPSHOT",
					cfg.Name), "$JS.SNAPSHOT.ACK."+cfg.Name+".>", jsFlow+cfg.Name+".>", jsFlow+"*.*."+cfg.Name+".>")
		}
	}
	return permissions(UserOperator, p, askWorkers(RepoVerbs()...))
}

// Prefixes of NATS itself.
const (
	jsAPI    = "$JS.API."
	jsAck    = "$JS.ACK."
	jsFlow   = "$JS.FC."
	microAPI = "$SRV."
)

// api is a subject of JetStream's API.
func api(verb string, tokens ...string) string {
	return jsAPI + strings.Join(append([]string{verb}, tokens...), ".")
}

// follow allows to follow a stream as lib/bus does: to ask for its messages, for its end and for
// the last message of a subject, and to be told of what it stores on the subjects of a filter.
func follow(stream, filter string) Permissions {
	return Permissions{
		Publish: []string{api("STREAM.INFO", stream), api("DIRECT.GET", stream), api("DIRECT.GET", stream, filter),
			api("STREAM.MSG.GET", stream)},
		Subscribe: []string{StoredSubject(stream, filter)},
	}
}

// getKey allows to read single keys of a bucket.
func getKey(bucket, keys string) Permissions {
	stream := KVStream(bucket)
	return publish(api("STREAM.INFO", stream), api("DIRECT.GET", stream, KVSubject(bucket, keys)))
}

// watchGroup allows to see who of a group is there and who works on what.
func watchGroup(group string) Permissions {
	keys := ClaimKey(group, ">")
	return permissions("", follow(KVStream(BucketWorkers), KVSubject(BucketWorkers, keys)),
		follow(KVStream(BucketClaims), KVSubject(BucketClaims, keys)))
}

// joinGroup allows to be a worker of a group and to claim its keys.
func joinGroup(group string) Permissions {
	keys := ClaimKey(group, ">")
	return permissions("", watchGroup(group), getKey(BucketWorkers, keys), getKey(BucketClaims, keys),
		publish(KVSubject(BucketWorkers, keys), KVSubject(BucketClaims, keys)))
}

// offer allows to hand candidates to ingest, through the stream of these lanes, and to be told how
// they ended: each sender has a subject of its own below grasp.verdict, which no other can guess.
func offer(stream string, lanes ...Lane) Permissions {
	p := Permissions{Publish: []string{api("STREAM.INFO", stream)}, Subscribe: []string{VerdictSubject("*")}}
	for _, l := range lanes {
		p.Publish = append(p.Publish, l.Subject())
	}
	return p
}

// askWorkers allows to ask purgatory's workers about repositories.
func askWorkers(verbs ...RepoVerb) (p Permissions) {
	for _, verb := range verbs {
		p.Publish = append(p.Publish, RepoSubject("*", verb))
	}
	return p
}
