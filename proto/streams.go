package proto

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Streams.
const (
	StreamUser     = "GRASP_CANDIDATES_USER"    // candidates, a stream for each lane: see [Streams]
	StreamRelease  = "GRASP_CANDIDATES_RELEASE" //
	StreamSync     = "GRASP_CANDIDATES_SYNC"    //
	StreamLive     = "GRASP_CANDIDATES_LIVE"    //
	StreamEvents   = "GRASP_EVENTS"
	StreamRejected = "GRASP_REJECTED"
	StreamTargets  = "GRASP_TARGETS"
)

// Buckets.
const (
	BucketHeld    = "grasp-held"
	BucketRelays  = "grasp-relays"
	BucketClaims  = "grasp-claims"
	BucketWorkers = "grasp-workers"
	BucketUsage   = "grasp-usage"
	BucketBans    = "grasp-bans"
)

// Worker groups: the first token of a claim or worker key.
const (
	GroupRelays = "relayconn"
	GroupShards = "purgatory"
	GroupWriter = "ingest"
)

// KeyLog is the one key of [GroupWriter]: the worker that has claimed it writes the log.
const KeyLog = "log"

// Durable consumers of the ingest writer.
const (
	ConsumerUser    = "ingest-user"    // one of each stream of candidates, in order of service
	ConsumerRelease = "ingest-release" //
	ConsumerLive    = "ingest-live"    //
	ConsumerSync    = "ingest-sync"    //
)

// Sizing is what differs between deployments. Every figure must be set, see [DefaultSizing].
type Sizing struct {
	Replicas       int           // of every stream and bucket: 1 or 3
	CandidateBytes int64         // bound of each queue of candidates; a full queue pushes back
	RejectedMaxAge time.Duration // how long rejected ids are remembered
	WorkerTTL      time.Duration // a worker that does not beat for so long is dead
	ClaimWait      time.Duration // how long a candidate may be in the writer's hands before it is handed out again
	MemoryOnly     bool          // keeps nothing on disk (NGIT_DATABASE_BACKEND=memory)
	// ClaimsInMemory: claims, and the records of workers, are not on disk. Where one process has the
	// NATS server, they need not outlive it, and its workers go on while its disk is full.
	ClaimsInMemory bool
}

// DefaultSizing is what a laptop needs.
func DefaultSizing() Sizing {
	return Sizing{
		Replicas:       1,
		CandidateBytes: 64 << 20,
		RejectedMaxAge: 7 * 24 * time.Hour,
		WorkerTTL:      10 * time.Second,
		ClaimWait:      10 * time.Second,
	}
}

// rejectedBytes bounds the stream of rejections; the oldest go.
const rejectedBytes = 256 << 20

// Streams returns every stream of the contract, buckets included: a bucket is a stream, and ours
// are declared as such because ingest writes grasp-held in atomic batches and because their changes
// are republished where people listen.
func Streams(s Sizing) []jetstream.StreamConfig {
	file := jetstream.FileStorage
	if s.MemoryOnly {
		file = jetstream.MemoryStorage
	}
	claims := file
	if s.ClaimsInMemory {
		claims = jetstream.MemoryStorage
	}
	configs := []jetstream.StreamConfig{
		lane(StreamUser, "events of users that wait for ingest's decision", s.CandidateBytes, LaneUser),
		lane(StreamRelease, "what purgatory asks of ingest", s.CandidateBytes, LaneRelease),
		lane(StreamSync, "older events of other relays that wait for ingest's decision", s.CandidateBytes, LaneSyncHistoric,
			LaneSyncDaily, LaneImport),
		lane(StreamLive, "new events of other relays that wait for ingest's decision", s.CandidateBytes, LaneSyncLive),
		{
			Name:               StreamEvents,
			RePublish:          republish(">", storedPrefix+StreamEvents),
			Description:        "the log: every accepted event",
			Subjects:           []string{prefixEvent + ">", SubjectEventsMark},
			Storage:            file,
			MaxMsgsPerSubject:  1,
			Duplicates:         time.Second, // ids are there for a chain of messages, not to find duplicates
			DenyDelete:         true,
			DenyPurge:          true,
			AllowAtomicPublish: true,
			AllowDirect:        true,
			AllowMsgTTL:        true, // what says that an event has left the log goes by itself
		},
		{
			Name:               StreamRejected,
			RePublish:          republish(">", storedPrefix+StreamRejected),
			Description:        "ids of rejected events and why",
			Subjects:           []string{prefixRejected + ">"},
			Storage:            file,
			MaxMsgsPerSubject:  1,
			MaxBytes:           rejectedBytes,
			MaxAge:             s.RejectedMaxAge,
			AllowAtomicPublish: true,
			AllowDirect:        true,
		},
		{
			Name:               StreamTargets,
			RePublish:          republish(">", storedPrefix+StreamTargets),
			Description:        "which relay should be asked for what",
			Subjects:           []string{AnyTarget, AnyWanted},
			Storage:            file,
			MaxMsgsPerSubject:  1,
			AllowAtomicPublish: true,
			AllowDirect:        true,
			AllowMsgTTL:        true, // what says that nothing is wanted any more goes by itself
		},
		bucket(BucketHeld, "events that wait for git data", file, "grasp.held"),
		bucket(BucketRelays, "how every relay's connection stands", file, "grasp.relay"),
		bucket(BucketUsage, "bytes stored today, by author, address and relay", file, "grasp.usage"),
		bucket(BucketBans, "what an operator has banned", file, "grasp.ban"),
		bucket(BucketClaims, "who works on what", claims, "grasp.claim"),
		bucket(BucketWorkers, "who is there to work", claims, "grasp.worker"),
	}
	for i := range configs {
		configs[i].Replicas = s.Replicas
		if configs[i].Name == KVStream(BucketHeld) {
			configs[i].AllowAtomicPublish = true
		}
		if configs[i].Name == KVStream(BucketUsage) {
			configs[i].MaxAge = 48 * time.Hour
		}
		if configs[i].Name == KVStream(BucketWorkers) {
			configs[i].MaxAge = s.WorkerTTL
			configs[i].SubjectDeleteMarkerTTL = time.Hour
			configs[i].AllowRollup = true // or NATS makes no such markers
		}
	}
	return configs
}

// IsCandidateStream reports whether a stream holds candidates, which concern only processes that
// run now. Such streams are always in memory. Where a NATS server has lost them, they are made
// again, and nothing that was acknowledged is lost.
func IsCandidateStream(stream string) bool {
	_, passing := Consumers(Sizing{})[stream]
	return passing
}

// Needs returns the streams that a service reads or writes, by its name. It cannot begin before
// they are there. A process of any other name needs the log and the bans, for its index.
func Needs(service string) []string {
	claims := []string{KVStream(BucketClaims), KVStream(BucketWorkers)}
	needs := []string{StreamEvents, KVStream(BucketBans)}
	switch service {
	case "ingest":
		needs = nil
		for _, s := range Streams(DefaultSizing()) {
			needs = append(needs, s.Name)
		}
	case "gateway":
		needs = append(append(needs, StreamUser), claims...)
	case "discovery":
		needs = append(needs, KVStream(BucketHeld), StreamTargets)
	case GroupRelays:
		needs = append(append(needs, StreamLive, StreamSync, StreamTargets, KVStream(BucketRelays)), claims...)
	case GroupShards:
		needs = append(append(needs, StreamRelease, KVStream(BucketHeld), KVStream(BucketUsage)), claims...)
	}
	return needs
}

// Consumers returns the durable consumer of the ingest writer of each stream of candidates.
func Consumers(s Sizing) map[string]jetstream.ConsumerConfig {
	all := map[string]jetstream.ConsumerConfig{}
	for stream, name := range map[string]string{StreamUser: ConsumerUser, StreamRelease: ConsumerRelease,
		StreamLive: ConsumerLive, StreamSync: ConsumerSync} {
		all[stream] = jetstream.ConsumerConfig{
			Durable: name, Description: "the ingest replica that writes the log takes candidates here",
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.ClaimWait, MaxAckPending: 4096, Replicas: s.Replicas, MemoryStorage: true,
		}
	}
	return all
}

// lane declares a queue of candidates. Users' events, releases, live events and older ones have a
// stream each, because a stream has one bound, and one order, for all that is in it: older events
// that filled it would keep the others out.
func lane(name, description string, maxBytes int64, lanes ...Lane) jetstream.StreamConfig {
	var subjects []string
	for _, l := range lanes {
		subjects = append(subjects, l.Subject())
	}
	return jetstream.StreamConfig{
		Name:        name,
		Description: description,
		Subjects:    subjects,
		Retention:   jetstream.WorkQueuePolicy,
		Storage:     jetstream.MemoryStorage,
		MaxBytes:    maxBytes,
		Discard:     jetstream.DiscardNew,
	}
}

// KVOperation is the header by which a message of a bucket's stream says that it deletes its key; a
// value has none. KVDelete is what we write.
const (
	KVOperation = "KV-Operation"
	KVDelete    = "DEL"
)

// KVStream is the name of the stream behind a bucket.
func KVStream(bucket string) string { return "KV_" + bucket }

// KVSubject is the subject of a key of a bucket, for writers that batch.
func KVSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// bucket declares a KV bucket as nats.go's CreateKeyValue would, with its changes republished below
// destination.
func bucket(name, description string, storage jetstream.StorageType, destination string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              KVStream(name),
		Description:       description,
		Subjects:          []string{KVSubject(name, ">")},
		Storage:           storage,
		MaxMsgsPerSubject: 1,
		Discard:           jetstream.DiscardNew,
		DenyDelete:        true,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		RePublish:         republish(KVSubject(name, ">"), destination),
	}
}

// storedPrefix begins the subjects on which the streams that are no buckets tell, without the data,
// what they have stored.
const storedPrefix = "grasp.stored."

func republish(source, destination string) *jetstream.RePublish {
	return &jetstream.RePublish{Source: source, Destination: destination + ".>", HeadersOnly: source == ">"}
}

// StoredSubject is where a stream tells of each message that it has stored, with its sequence in a
// header, on the subjects of a filter: a subject of the stream, which may have wildcards.
func StoredSubject(stream, filter string) string {
	for _, cfg := range Streams(DefaultSizing()) {
		if cfg.Name == stream && cfg.RePublish != nil {
			rest := filter
			if rest != ">" {
				rest = strings.TrimPrefix(rest, strings.TrimSuffix(cfg.RePublish.Source, ">"))
			}
			return strings.TrimSuffix(cfg.RePublish.Destination, ">") + rest
		}
	}
	return storedPrefix + stream + "." + filter
}
