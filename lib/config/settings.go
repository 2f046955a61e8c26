// Package config declares every setting of Tendril once. Flags, environment, `.env`, `--help` and
// docs/configuration.md are all made from this declaration.
//
// One declaration serves every service: an operator gives the same environment to each Deployment,
// and each takes what it needs. The groups are topics, not services.
//
// Tags of a setting: env (its name), name, default, help, as kong has them. The flag of NGIT_X_Y is
// --x-y; where name differs from that, it is a second flag. Ours are min and max (the range that
// [Settings.Check] allows, in the setting's own unit), secret (never printed) and also (other names
// of the variable, that other GRASP servers have).
package config

import "time"

//go:generate go run ./internal/reference ../../docs/configuration.md ../../.env.example

// Settings is all that can be set. A name NGIT_X means what it means to other GRASP servers, so
// their `.env` works here.
type Settings struct {
	Service `embed:"" group:"Service"`
	Storage `embed:"" group:"Storage"`
	Bus     `embed:"" group:"Bus"`
	Policy  `embed:"" group:"Policy"`
	Sync    `embed:"" group:"Sync"`
	Git     `embed:"" group:"Git data"`
	Front   `embed:"" group:"Front door"`
	Observe `embed:"" group:"Observation"`

	// Warnings are what the operator should know about where the settings came from, like a name
	// that is none of ours.
	Warnings []string `kong:"-"`
}

// Service says who we are and where we listen.
type Service struct {
	Domain           string `env:"NGIT_DOMAIN" name:"domain" placeholder:"HOST" help:"Our public host name, with a port if it is not 80 or 443. Announcements list it. Required."`
	BindAddress      string `env:"NGIT_BIND_ADDRESS" name:"bind-address" default:"127.0.0.1:7334" help:"Where the front door listens: relay, git and web pages on one port."`
	RelayName        string `env:"NGIT_RELAY_NAME" name:"relay-name" help:"Name in the relay information document (NIP-11). Empty: '<domain> grasp relay'."`
	RelayIcon        string `env:"NGIT_RELAY_ICON" name:"relay-icon" placeholder:"FILE|URL" help:"Icon of the relay: a PNG file, which is served at /icon.png, or an http(s) URL, which is named instead. Empty: one that comes with the program."`
	RelayDescription string `env:"NGIT_RELAY_DESCRIPTION" name:"relay-description" default:"Git repositories with nostr announcements: a GRASP server." help:"Description in the relay information document."`
	RelayOwnerNsec   string `env:"NGIT_RELAY_OWNER_NSEC" name:"relay-owner-nsec" secret:"" placeholder:"NSEC" help:"Secret key of the operator, nsec1… or 64 hex digits; its public key is named in the relay information document. Empty: the file .relay-owner.nsec in the working directory, or else a key file that is generated in the relay data folder."`
	WorkerName       string `env:"NGIT_WORKER_NAME" name:"worker-name" help:"Name of this process in claims; must differ between processes. Empty: the host's name and a random part."`
	AllowPrivate     bool   `env:"NGIT_ALLOW_PRIVATE_NETWORKS" also:"NGIT_SYNC_ALLOW_NON_GLOBAL_TARGETS" name:"allow-private-networks" help:"Allow connections to loopback, private and link-local addresses. For tests and closed networks."`
	EnvFile          string `env:"NGIT_ENV_FILE" name:"env-file" placeholder:"FILE" help:"File of settings, NAME=value a line; flags and the environment come before it. Empty: .env in the working directory, if there is one."`
}

// DefaultGitDataPath is the git folder of whoever names none.
const DefaultGitDataPath = "./data/git"

// Storage says where data lies.
type Storage struct {
	GitDataPath     string `env:"NGIT_GIT_DATA_PATH" name:"git-data-path" default:"./data/git" help:"Folder of the git repositories."`
	RelayDataPath   string `env:"NGIT_RELAY_DATA_PATH" name:"relay-data-path" default:"./data/relay" help:"Folder of the event log and its index."`
	DatabaseBackend string `env:"NGIT_DATABASE_BACKEND" name:"database-backend" default:"file" help:"'memory': nothing outlives the process, except a git folder that NGIT_GIT_DATA_PATH names. Any other value: the folders."`
	IndexCacheBytes int64  `env:"NGIT_INDEX_CACHE_BYTES" name:"index-cache-bytes" default:"67108864" min:"1048576" max:"1099511627776" help:"Cache of the event index, in bytes. Up to 64 MiB more hold what is being written."`
}

// Bus says which NATS to use.
type Bus struct {
	NATSURL        string        `env:"NGIT_NATS_URL" name:"nats-url" help:"URL of a NATS server with JetStream. Empty: one is embedded."`
	NATSLoginFile  string        `env:"NGIT_NATS_LOGIN_FILE" name:"nats-login-file" placeholder:"FILE" help:"Login for NATS: a file with one line, user:password. It is read again at every connect, so that a new password needs no restart. 'tendril logins' makes such files."`
	NATSCreds      string        `env:"NGIT_NATS_CREDS" name:"nats-creds" help:"Credentials file for NATS."`
	NATSCA         string        `env:"NGIT_NATS_CA" name:"nats-ca" placeholder:"FILE" help:"Certificates (PEM) of which one must have signed that of the NATS server; the connection is then always encrypted. Empty: those of the system, with a URL tls://…."`
	NATSCert       string        `env:"NGIT_NATS_CERT" name:"nats-cert" placeholder:"FILE" help:"Own certificate (PEM) for a NATS server that wants one."`
	NATSKey        string        `env:"NGIT_NATS_KEY" name:"nats-key" placeholder:"FILE" help:"Key (PEM) of NGIT_NATS_CERT."`
	NATSReplicas   int           `env:"NGIT_NATS_REPLICAS" name:"nats-replicas" default:"1" help:"Replicas of streams and buckets: 1, 3 or 5."`
	NATSListen     string        `env:"NGIT_NATS_LISTEN" name:"nats-listen" default:"127.0.0.1:4222" help:"Where the embedded NATS listens for operators ('nats sub'). 'none': nowhere."`
	NATSPassword   string        `env:"NGIT_NATS_PASSWORD" name:"nats-password" secret:"" placeholder:"PASSWORD" help:"Password of the user 'operator' at the embedded NATS, who may read everything and write nothing ('tendril repo' aside), and of 'import', by which 'tendril import' offers events; nobody else is let in. Empty: whoever can connect may do everything."`
	ForgetLog      string        `env:"NGIT_FORGET_LOG" name:"forget-log" help:"Time at which the event log was made that is given up; the message 'the log of … is gone' names it. Only with it does a process that misses this log start with an empty one."`
	CandidateBytes int64         `env:"NGIT_CANDIDATE_QUEUE_BYTES" name:"candidate-queue-bytes" default:"67108864" min:"1048576" max:"1099511627776" help:"Bound of each queue of undecided events, in bytes: users' events, releases from purgatory, live events of other relays, older ones. A full queue slows its senders down. Less than 2 MiB is taken as 2 MiB, so that the largest event fits."`
	WorkerTTL      time.Duration `env:"NGIT_WORKER_TTL" name:"worker-ttl" default:"10s" min:"1s" max:"1h" help:"A worker whose heartbeat is older than this is dead and its claims are free."`
	WriterTTL      time.Duration `env:"NGIT_WRITER_TTL" name:"writer-ttl" default:"5s" min:"100ms" max:"1h" help:"A writer that is silent for so long hands over to the standby."`
	CandidateWait  time.Duration `env:"NGIT_CANDIDATE_ACK_WAIT" name:"candidate-ack-wait" default:"10s" min:"100ms" max:"1h" help:"A candidate that a writer took and did not decide is handed out again after this."`
	BatchSize      int           `env:"NGIT_COMMIT_BATCH" name:"commit-batch" default:"1000" min:"1" max:"1000" help:"Most events in one commit."`
}

// Policy says what is accepted.
type Policy struct {
	RepositoryWhitelist []string      `env:"NGIT_REPOSITORY_WHITELIST" name:"repository-whitelist" help:"Only host these: npub, npub/identifier or identifier, comma-separated."`
	RepositoryBlacklist []string      `env:"NGIT_REPOSITORY_BLACKLIST" name:"repository-blacklist" help:"Never host these: npub, npub/identifier or identifier, comma-separated. Malformed entries are warned of and left out."`
	EventBlacklist      []string      `env:"NGIT_EVENT_BLACKLIST" name:"event-blacklist" help:"Accept nothing signed by these npubs, comma-separated. Malformed entries are warned of and left out."`
	IgnoreDeletions     bool          `env:"NGIT_DELETION_REQUEST_DISRESPECTOR" name:"ignore-deletions" help:"Store deletion requests but keep the accepted events that they name."`
	RejectedHotSeconds  int           `env:"NGIT_REJECTED_HOT_CACHE_DURATION_SECS" name:"rejected-hot-seconds" default:"120" min:"0" max:"315360000" help:"How long a rejected event that may heal is kept whole, in seconds."`
	RejectedColdSeconds int           `env:"NGIT_REJECTED_COLD_INDEX_EXPIRY_SECS" name:"rejected-cold-seconds" default:"604800" min:"1" max:"315360000" help:"How long the id of a rejected event is remembered, in seconds."`
	RejectedHotEvents   int           `env:"NGIT_REJECTED_HOT_CACHE_EVENTS" name:"rejected-hot-events" default:"20000" min:"0" max:"10000000" help:"Most rejected events kept whole at once."`
	HoldDuration        time.Duration `env:"NGIT_PURGATORY_HOLD" name:"purgatory-hold" default:"30m" min:"1ms" max:"8760h" help:"How long an event waits in purgatory for its git data."`
	HeldBytes           int           `env:"NGIT_PURGATORY_MAX_BYTES" name:"purgatory-max-bytes" default:"134217728" min:"0" max:"1099511627776" help:"Most bytes of events in purgatory, as they are kept in memory. When they are reached, silent entries and the oldest of the heaviest authors and sources make room. 0: any number."`
	SilentDuration      time.Duration `env:"NGIT_PURGATORY_SILENT" name:"purgatory-silent" default:"24h" min:"1ms" max:"8760h" help:"How long an announcement whose wait is over is kept, silent, for a state event that revives it."`
	ArchiveAll          bool          `env:"NGIT_ARCHIVE_ALL" name:"archive-all" help:"Archive every repository that is seen (GRASP-05), also those whose announcement does not list this service."`
	ArchiveWhitelist    []string      `env:"NGIT_ARCHIVE_WHITELIST" name:"archive-whitelist" help:"Archive these (GRASP-05), though they do not list this service: npub, npub/identifier or identifier, comma-separated."`
	ArchiveServices     []string      `env:"NGIT_ARCHIVE_GRASP_SERVICES" name:"archive-grasp-services" help:"Archive what these GRASP services host (GRASP-05): domains without a scheme, comma-separated. Not together with NGIT_ARCHIVE_ALL or NGIT_ARCHIVE_WHITELIST."`
	ArchiveReadOnly     *bool         `env:"NGIT_ARCHIVE_READ_ONLY" name:"archive-read-only" help:"Refuse pushes to archived repositories (GRASP-05). Empty: true. false: they are taken as pushes to hosted repositories are. What lists this service can always be pushed to."`
	ContributorPRs      bool          `env:"NGIT_GRASP06_ENABLE" name:"grasp06" help:"Take the pull requests of contributors at /prs/<npub>/<identifier>.git, for any repository (GRASP-06)."`
	DeletionGrace       time.Duration `env:"NGIT_DELETION_GRACE" name:"deletion-grace" default:"168h" min:"0s" max:"87600h" help:"How long the git data of a repository is kept after its owner has deleted it or moved it away. An announcement within that time brings it back."`
	MaxFutureSeconds    int           `env:"NGIT_MAX_FUTURE_SECS" name:"max-future-seconds" default:"900" min:"0" max:"315360000" help:"How far in the future an event's created_at may lie, in seconds."`
}

// Sync says how other relays are followed.
type Sync struct {
	BootstrapRelays     []string      `env:"NGIT_SYNC_BOOTSTRAP_RELAY_URL" name:"bootstrap-relay-url" help:"Relays to sync from at the start, comma-separated; wss is assumed without a scheme."`
	BaseBackoffSeconds  int           `env:"NGIT_SYNC_BASE_BACKOFF_SECS" name:"sync-base-backoff-seconds" default:"5" min:"1" max:"86400" help:"First wait after a failed connection, and the connect timeout, in seconds."`
	MaxBackoffSeconds   int           `env:"NGIT_SYNC_MAX_BACKOFF_SECS" name:"sync-max-backoff-seconds" default:"3600" min:"1" max:"604800" help:"Longest wait after failed connections, in seconds."`
	DisableNegentropy   bool          `env:"NGIT_SYNC_DISABLE_NEGENTROPY" name:"sync-disable-negentropy" help:"Never ask other relays by NIP-77 (negentropy), always by REQ."`
	BatchWindowMillis   int           `env:"NGIT_SYNC_BATCH_WINDOW_MS" name:"sync-batch-window-ms" default:"5000" min:"0" max:"3600000" help:"How long changes are collected before they become one change of targets, in milliseconds."`
	CheckSeconds        int           `env:"NGIT_SYNC_DISCONNECT_CHECK_INTERVAL_SECS" name:"sync-check-seconds" default:"2" min:"1" max:"3600" help:"How often a worker looks after its relays, in seconds."`
	NaughtyHours        int           `env:"NGIT_NAUGHTY_LIST_EXPIRATION_HOURS" name:"sync-naughty-hours" default:"12" min:"1" max:"8760" help:"How long a relay with DNS, TLS or protocol errors of its own is left alone, in hours."`
	StartupJitterMillis int           `env:"NGIT_SYNC_STARTUP_JITTER_MS" name:"sync-startup-jitter-ms" default:"10000" min:"0" max:"3600000" help:"Connections of a start are spread over this time, in milliseconds."`
	StartupDelaySeconds int           `env:"NGIT_SYNC_STARTUP_DELAY_SECS" name:"sync-startup-delay-seconds" default:"0" min:"0" max:"86400" help:"Holds back the first historic sync, in seconds."`
	ReconnectWindow     time.Duration `env:"NGIT_SYNC_RECONNECT_WINDOW" name:"sync-reconnect-window" default:"15m" min:"0s" max:"8760h" help:"A relay that was away for no longer than this gets a quick reconnect instead of a fresh start."`
	DailyMin            time.Duration `env:"NGIT_SYNC_DAILY_MIN" name:"sync-daily-min" default:"23h" min:"1ms" max:"8760h" help:"Shortest time between two daily fresh starts."`
	DailyMax            time.Duration `env:"NGIT_SYNC_DAILY_MAX" name:"sync-daily-max" default:"25h" min:"1ms" max:"8760h" help:"Longest time between two daily fresh starts."`
	StableAfter         time.Duration `env:"NGIT_SYNC_STABLE_AFTER" name:"sync-stable-after" default:"5m" min:"1ms" max:"8760h" help:"A connection that has held for this long is healthy."`
	DeadAfter           time.Duration `env:"NGIT_SYNC_DEAD_AFTER" name:"sync-dead-after" default:"24h" min:"1ms" max:"8760h" help:"A relay that failed for so long is dead, and is tried once in that time."`
	RateLimitCooldown   time.Duration `env:"NGIT_SYNC_RATE_LIMIT_COOLDOWN" name:"sync-rate-limit-cooldown" default:"65s" min:"1ms" max:"24h" help:"How long a relay that said we are rate limited is left in peace."`
	PageSize            int           `env:"NGIT_SYNC_PAGE_LIMIT" name:"sync-page-limit" default:"500" min:"1" max:"10000" help:"limit of one page of a historic REQ."`
	SilenceTimeout      time.Duration `env:"NGIT_SYNC_REQ_TIMEOUT" name:"sync-req-timeout" default:"60s" min:"1ms" max:"24h" help:"How long a relay may be silent on a historic subscription until that counts as failed. A live subscription that it does not answer for so long counts as open."`
	ConsolidateWait     time.Duration `env:"NGIT_SYNC_CONSOLIDATE_WAIT" name:"sync-consolidate-wait" default:"60s" min:"0s" max:"24h" help:"How long consolidation waits for historic sync to end."`
	BatchesAtOnce       int           `env:"NGIT_SYNC_FILTERS_AT_ONCE" name:"sync-filters-at-once" default:"16" min:"1" max:"1000" help:"Most historic subscriptions open at once on a connection. Less where the relay takes less."`
	MaxFilters          int           `env:"NGIT_SYNC_MAX_FILTERS" name:"sync-max-filters" default:"70" min:"1" max:"10000" help:"More live filters than this on a connection are consolidated."`
	MaxEventBytes       int64         `env:"NGIT_SYNC_MAX_MESSAGE_BYTES" name:"sync-max-message-bytes" default:"1048576" min:"1024" max:"1048576" help:"Largest message taken from another relay, in bytes."`
	MaxTargets          int           `env:"NGIT_SYNC_MAX_TARGETS" name:"sync-max-targets" default:"20000" min:"1" max:"1000000" help:"Most relays that are asked because a served announcement lists them. Where more are listed, owners take turns."`
	MaxHeldTargets      int           `env:"NGIT_SYNC_MAX_HELD_TARGETS" name:"sync-max-held-targets" default:"1000" min:"0" max:"1000000" help:"Most further relays that are asked for states because an announcement in purgatory lists them. Where more are listed, clients and relays that the announcements came from take turns."`
	MaxRelaysPerWorker  int           `env:"NGIT_SYNC_MAX_RELAYS" name:"sync-max-relays" default:"10000" min:"1" max:"1000000" help:"Most relays that one worker claims. Those that only announcements in purgatory list give way to others."`
}

// Git says how git data is kept, hunted and served.
type Git struct {
	GitBinary        string        `env:"NGIT_GIT_BINARY" name:"git-binary" default:"git" help:"The git program."`
	GitListen        string        `env:"NGIT_GIT_LISTEN" name:"git-listen" default:"127.0.0.1:0" help:"Where a purgatory worker serves git to the front doors. Port 0: any."`
	GitAdvertise     string        `env:"NGIT_GIT_ADVERTISE" name:"git-advertise" help:"host:port under which front doors reach this purgatory worker. Empty: what it listens on."`
	HuntUserDelay    time.Duration `env:"NGIT_HUNT_USER_DELAY" name:"hunt-user-delay" default:"3m" min:"0s" max:"24h" help:"How long the hunt for the data of a submitted event waits for a push."`
	HuntSyncDelay    time.Duration `env:"NGIT_HUNT_SYNC_DELAY" name:"hunt-sync-delay" default:"500ms" min:"0s" max:"24h" help:"How long the hunt for the data of a synced event waits for more of its kind."`
	HuntInterval     time.Duration `env:"NGIT_HUNT_INTERVAL" name:"hunt-interval" default:"1s" min:"1ms" max:"1h" help:"How often due hunts are looked for."`
	HuntBackoffBase  time.Duration `env:"NGIT_HUNT_BACKOFF_BASE" name:"hunt-backoff-base" default:"20s" min:"1ms" max:"24h" help:"Wait after the first unsuccessful hunt; doubles each time."`
	HuntBackoffMax   time.Duration `env:"NGIT_HUNT_BACKOFF_MAX" name:"hunt-backoff-max" default:"2m" min:"1ms" max:"24h" help:"Longest wait between hunts."`
	HuntsAtOnce      int           `env:"NGIT_HUNTS_AT_ONCE" name:"hunts-at-once" default:"32" min:"1" max:"10000" help:"Most fetches from git servers at once by a worker. One server (registrable domain, or address range), one author and one client get a quarter of them at most."`
	DomainConcurrent int           `env:"NGIT_SYNC_DOMAIN_CONCURRENT" name:"domain-concurrent" default:"5" min:"1" max:"10000" help:"Most requests at once to one git server."`
	DomainRateLimit  int           `env:"NGIT_SYNC_DOMAIN_RATE_LIMIT" name:"domain-rate-limit" default:"30" min:"1" max:"1000000" help:"Most requests to one git server in any 60 seconds."`
	DomainLimits     []string      `env:"NGIT_SYNC_DOMAIN_LIMITS" name:"domain-limits" help:"Limits of single git servers, domain:concurrent:rate, comma-separated."`
	FetchTimeout     time.Duration `env:"NGIT_FETCH_TIMEOUT" name:"fetch-timeout" default:"5m" min:"1ms" max:"24h" help:"Longest time for one fetch."`
	MaxFetchBytes    int64         `env:"NGIT_MAX_FETCH_BYTES" name:"max-fetch-bytes" default:"2147483648" min:"1024" max:"1125899906842624" help:"Largest pack fetched, in bytes."`
	FetchMinRate     int64         `env:"NGIT_FETCH_MIN_RATE" name:"fetch-min-rate" default:"1024" min:"0" max:"1073741824" help:"Lowest rate of a git server that is fetched from, in bytes a second over 30 s; one that sends more slowly, or takes more than a minute to begin, is cut off. 0: none."`
	MaxPushBytes     int64         `env:"NGIT_MAX_PUSH_BYTES" name:"max-push-bytes" default:"4294967296" min:"1024" max:"1125899906842624" help:"Largest push taken, in bytes."`
	PushSecrets      string        `env:"NGIT_PUSH_SECRETS" name:"push-secrets" default:"warn" help:"What happens to a push that would publish a secret: a nostr secret key (nsec1…), a private key in PEM, or a service's token. refuse: it is refused, and the user is told the file and the line. warn: it is taken, and the user is warned. off: pushes are not searched for secrets."`
	GitPruneInterval time.Duration `env:"NGIT_GIT_PRUNE_INTERVAL" name:"git-prune-interval" default:"30m" min:"1ms" max:"50m" help:"How often git objects are removed that nothing needs any more."`

	PendingPushBytes           int64 `env:"NGIT_PENDING_PUSH_BYTES" name:"pending-push-bytes" default:"4294967296" min:"0" max:"1125899906842624" help:"Most bytes below refs/nostr/ that wait for their events in a worker."`
	PendingPushBytesPerClient  int64 `env:"NGIT_PENDING_PUSH_BYTES_PER_CLIENT" name:"pending-push-bytes-per-client" default:"268435456" min:"0" max:"1125899906842624" help:"Most bytes below refs/nostr/ that wait for their events from one address."`
	PendingPushes              int   `env:"NGIT_PENDING_PUSHES" name:"pending-pushes" default:"10000" min:"0" max:"10000000" help:"Most references below refs/nostr/ that wait for their events in a worker."`
	PendingPushesPerClient     int   `env:"NGIT_PENDING_PUSHES_PER_CLIENT" name:"pending-pushes-per-client" default:"64" min:"0" max:"10000000" help:"Most references below refs/nostr/ that wait for their events from one address."`
	PendingPushesPerRepository int   `env:"NGIT_PENDING_PUSHES_PER_REPOSITORY" name:"pending-pushes-per-repository" default:"256" min:"0" max:"5000" help:"Most references below refs/nostr/ that wait for their events in one repository."`

	GitProcesses     int           `env:"NGIT_GIT_PROCESSES" name:"git-processes" default:"32" min:"1" max:"100000" help:"Most git processes at once in a worker, at least 5; more wait."`
	GitProcessMemory int64         `env:"NGIT_GIT_PROCESS_MEMORY" name:"git-process-memory" default:"4294967296" min:"67108864" max:"1125899906842624" help:"Most memory of one git process, in bytes. On Linux only."`
	GitPackTime      time.Duration `env:"NGIT_GIT_PACK_TIME" name:"git-pack-time" default:"30m" min:"1ms" max:"24h" help:"Longest time that git may take to check and store one pack."`
	MaxObjectBytes   int64         `env:"NGIT_MAX_OBJECT_BYTES" name:"max-object-bytes" default:"536870912" min:"1024" max:"1125899906842624" help:"Largest object of a pack, unpacked, in bytes."`
	MaxUnpackedBytes int64         `env:"NGIT_MAX_UNPACKED_BYTES" name:"max-unpacked-bytes" default:"274877906944" min:"1024" max:"1125899906842624" help:"Most bytes of all objects of a pack together, unpacked."`
	GitRequests      int           `env:"NGIT_GIT_REQUESTS" name:"git-requests" default:"1024" min:"2" max:"1000000" help:"Most git requests under way at once in a worker; one client has at most as many as are still free."`
	GitSpoolBytes    int64         `env:"NGIT_GIT_SPOOL_BYTES" name:"git-spool-bytes" default:"17179869184" min:"1048576" max:"1125899906842624" help:"Most disk that git requests and answers on their way take in a worker, in bytes; one client has at most as much as is still free. At least twice NGIT_MAX_PUSH_BYTES."`
	GitMinRate       int64         `env:"NGIT_GIT_MIN_RATE" name:"git-min-rate" default:"1024" min:"1" max:"1000000000" help:"Lowest rate at which git clients must send and take, in bytes a second."`
	GitStall         time.Duration `env:"NGIT_GIT_STALL" name:"git-stall" default:"30s" min:"1ms" max:"24h" help:"How far a git client may fall behind the lowest rate before it is cut off."`
	GitHandOverWait  time.Duration `env:"NGIT_GIT_HANDOVER_WAIT" name:"git-handover-wait" default:"30s" min:"0s" max:"10m" help:"How long a git request waits while no worker holds its repository, because one stops or has died. It should be longer than NGIT_WORKER_TTL."`
	GitTransferTime  time.Duration `env:"NGIT_GIT_TRANSFER_TIME" name:"git-transfer-time" default:"6h" min:"1s" max:"168h" help:"Longest time for one request of a git client, and for one answer."`
}

// Front says how clients are treated at the front door. "One address" is an
// IPv4 address or the /64 of an IPv6 address.
type Front struct {
	TrustedProxies                  []string      `env:"NGIT_TRUSTED_PROXIES" also:"NGIT_TRUSTED_PROXY_CIDRS" name:"trusted-proxies" help:"Reverse proxies whose X-Forwarded-For and Forwarded are believed: addresses and networks like 10.0.0.0/8, comma-separated."`
	TrustForwardedFor               bool          `env:"NGIT_TRUST_FORWARDED_FOR" name:"trust-forwarded-for" help:"Believe X-Forwarded-For and Forwarded of one proxy with a loopback, private or link-local address. Where NGIT_TRUSTED_PROXIES is set, only that counts."`
	AuthRequired                    string        `env:"NGIT_AUTH_REQUIRED" name:"auth-required" default:"none" help:"What clients may do only after they have authenticated (NIP-42), with any key: none, read, write or both. Git and web pages never need it. Servers that cannot authenticate cannot sync from a relay that requires it for reading."`
	MaxConnections                  int           `env:"NGIT_MAX_CONNECTIONS" name:"max-connections" default:"4096" min:"1" max:"10000000" help:"Most WebSocket connections at once. Beyond it the client with the most of them loses one to a client with fewer."`
	MaxConnectionsPerIP             int           `env:"NGIT_MAX_CONNECTIONS_PER_IP" name:"max-connections-per-ip" default:"256" min:"1" max:"10000000" help:"Most WebSocket connections at once from one address."`
	MaxHTTPConnections              int           `env:"NGIT_MAX_HTTP_CONNECTIONS" name:"max-http-connections" default:"8192" min:"1" max:"10000000" help:"Most connections of any kind at once, WebSockets included. The limit of open files (ulimit -n) must be higher."`
	MaxHTTPConnectionsPerIP         int           `env:"NGIT_MAX_HTTP_CONNECTIONS_PER_IP" name:"max-http-connections-per-ip" default:"512" min:"1" max:"10000000" help:"Most connections of any kind at once from one address; idle ones give way to new ones. Those of trusted proxies do not count."`
	MaxSubscriptions                int           `env:"NGIT_MAX_SUBSCRIPTIONS" also:"NGIT_RELAY_MAX_SUBSCRIPTIONS" name:"max-subscriptions" default:"500" min:"1" max:"1000000" help:"Most subscriptions of a connection."`
	MaxSubscriptionsPerIP           int           `env:"NGIT_MAX_SUBSCRIPTIONS_PER_IP" name:"max-subscriptions-per-ip" default:"4000" min:"1" max:"100000000" help:"Most subscriptions of one address, over all its connections."`
	MaxFilters                      int           `env:"NGIT_MAX_FILTERS" name:"max-filters" default:"20" min:"1" max:"10000" help:"Most filters of a REQ."`
	MaxFilterValues                 int           `env:"NGIT_MAX_FILTER_VALUES" name:"max-filter-values" default:"2000" min:"1" max:"1000000" help:"Most values in one filter."`
	MaxFilterSteps                  int           `env:"NGIT_MAX_FILTER_STEPS" name:"max-filter-steps" default:"2000000" min:"50000" max:"1000000000" help:"Most steps over the index that one filter may cost; a broader one is refused."`
	OpenFilterBytes                 int64         `env:"NGIT_OPEN_FILTER_BYTES" name:"open-filter-bytes" default:"134217728" min:"1048576" max:"1099511627776" help:"Most bytes of the filters of all open subscriptions, each of which counts as 1024 bytes more."`
	OpenFilterBytesPerIP            int64         `env:"NGIT_OPEN_FILTER_BYTES_PER_IP" name:"open-filter-bytes-per-ip" default:"16777216" min:"1048576" max:"1099511627776" help:"Most bytes of the filters of open subscriptions from one address, counted likewise."`
	MaxReconciliations              int           `env:"NGIT_MAX_RECONCILIATIONS" name:"max-reconciliations" default:"4096" min:"1" max:"1000000" help:"Most sessions of reconciliation (NIP-77) at once. Beyond it the client with the most of them loses one to a client with fewer."`
	MaxReconciliationsPerIP         int           `env:"NGIT_MAX_RECONCILIATIONS_PER_IP" name:"max-reconciliations-per-ip" default:"256" min:"1" max:"1000000" help:"Most sessions of reconciliation at once from one address."`
	MaxReconciliationsPerConnection int           `env:"NGIT_MAX_RECONCILIATIONS_PER_CONNECTION" name:"max-reconciliations-per-connection" default:"32" min:"1" max:"1000000" help:"Most sessions of reconciliation at once of a connection."`
	MaxReconciledEvents             int           `env:"NGIT_MAX_RECONCILED_EVENTS" name:"max-reconciled-events" default:"250000" min:"1000" max:"10000000" help:"Most events that a filter of a reconciliation may match. Filters by kinds and times alone have no such limit. An event takes 40 bytes during a session, twice that while the events are gathered."`
	ReconciliationBytes             int64         `env:"NGIT_RECONCILIATION_BYTES" name:"reconciliation-bytes" default:"67108864" min:"1048576" max:"1099511627776" help:"Bytes of what sessions of reconciliation keep between two messages; what does not fit is gathered again. One address has at most a quarter."`
	ReconciliationIdle              time.Duration `env:"NGIT_RECONCILIATION_IDLE" name:"reconciliation-idle" default:"1m" min:"1s" max:"24h" help:"How long a session of reconciliation may be silent before it is closed."`
	MaxMessageBytes                 int64         `env:"NGIT_MAX_MESSAGE_BYTES" name:"max-message-bytes" default:"524288" min:"1024" max:"1048576" help:"Largest message of a client, in bytes."`
	MessageTime                     time.Duration `env:"NGIT_MESSAGE_TIME" name:"message-time" default:"1m" min:"1ms" max:"1h" help:"How long a client may take to send one message."`
	InboundBytes                    int64         `env:"NGIT_INBOUND_BYTES" name:"inbound-bytes" default:"67108864" min:"2097152" max:"1099511627776" help:"Most bytes of large messages that are read and events that wait for their verdict, of all clients; more are read later. One address has at most a quarter."`
	MaxLimit                        int           `env:"NGIT_MAX_LIMIT" name:"max-limit" default:"5000" min:"1" max:"1000000" help:"Largest limit of a filter."`
	DefaultLimit                    int           `env:"NGIT_DEFAULT_LIMIT" name:"default-limit" default:"500" min:"1" max:"1000000" help:"limit of a filter that names none."`
	EventsPerMinute                 int           `env:"NGIT_EVENTS_PER_MINUTE" name:"events-per-minute" default:"60" min:"1" max:"10000000" help:"Most events a minute that one connection may send."`
	EventsPerMinutePerIP            int           `env:"NGIT_EVENTS_PER_MINUTE_PER_IP" name:"events-per-minute-per-ip" default:"240" min:"1" max:"10000000" help:"Most events a minute that one address may send, over all its connections."`
	SendQueue                       int           `env:"NGIT_SEND_QUEUE" name:"send-queue" default:"1024" min:"1" max:"1000000" help:"Messages that may wait for a slow reader before it is disconnected."`
	SendQueueBytes                  int64         `env:"NGIT_SEND_QUEUE_BYTES" name:"send-queue-bytes" default:"16777216" min:"1048576" max:"1099511627776" help:"Bytes of events that may wait for a slow reader before it is disconnected."`
	SendQueuesBytes                 int64         `env:"NGIT_SEND_QUEUES_BYTES" name:"send-queues-bytes" default:"268435456" min:"1048576" max:"1099511627776" help:"Bytes of events that may wait for all slow readers together; then the slowest is disconnected. An event that waits for several counts once."`
	EventTimeout                    time.Duration `env:"NGIT_EVENT_TIMEOUT" name:"event-timeout" default:"10s" min:"1ms" max:"10m" help:"How long a client's event waits for its verdict."`
	GitRequestsPerIP                int           `env:"NGIT_GIT_REQUESTS_PER_IP" name:"git-requests-per-ip" default:"128" min:"1" max:"1000000" help:"Most git requests at once from one address."`
	GitWaiting                      int           `env:"NGIT_GIT_WAITING" name:"git-waiting" default:"2048" min:"1" max:"1000000" help:"Most git requests at once that wait because no worker holds their repository (NGIT_GIT_HANDOVER_WAIT). One address has at most a sixteenth of them. Never more than half of NGIT_MAX_HTTP_CONNECTIONS."`
	GitRequestsPerMinute            int           `env:"NGIT_GIT_REQUESTS_PER_MINUTE_PER_IP" name:"git-requests-per-minute-per-ip" default:"600" min:"1" max:"10000000" help:"Most requests for git data, pages and metrics a minute from one address."`
	PushBytesPerHour                int           `env:"NGIT_PUSH_BYTES_PER_HOUR_PER_IP" name:"push-bytes-per-hour-per-ip" default:"8589934592" min:"1048576" max:"1125899906842624" help:"Most bytes an hour that one address may push."`
	AnswerStall                     time.Duration `env:"NGIT_ANSWER_STALL" name:"answer-stall" default:"2m" min:"100ms" max:"48h" help:"How long a client may take for the next bytes of a request, or for the next 32 KiB of an answer, over HTTP before it is cut off. Longer than a git client may take for it (NGIT_GIT_STALL, and 32 KiB at NGIT_GIT_MIN_RATE)."`
}

// Observe says how we are watched.
type Observe struct {
	LogLevel       string        `env:"NGIT_LOG_LEVEL" name:"log-level" default:"info" help:"trace, debug, info, warn, error or off, or a filter like debug,hyper=info, of which the first level counts. trace is debug."`
	LogFormat      string        `env:"NGIT_LOG_FORMAT" name:"log-format" default:"text" help:"text or json."`
	MetricsEnabled bool          `env:"NGIT_METRICS_ENABLED" name:"metrics" default:"true" negatable:"no-metrics" help:"Serve /metrics."`
	AbuseThreshold int           `env:"NGIT_METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD" name:"metrics-abuse-threshold" default:"10" min:"0" max:"1000000" help:"An address with more WebSocket connections than this counts as an abuser in the metrics."`
	TopRepos       int           `env:"NGIT_METRICS_TOP_N_REPOS" name:"metrics-top-repos" default:"10" min:"0" max:"1000" help:"How many repositories the metric ngit_git_top_repos_bytes names, those with the most git traffic. 0: none."`
	ObserveAddress string        `env:"NGIT_OBSERVE_ADDRESS" name:"observe-address" default:"127.0.0.1:7335" help:"Where a service that runs alone serves /metrics, /healthz and /readyz."`
	ProfileAddress string        `env:"NGIT_PROFILE_ADDRESS" name:"profile-address" help:"Where this process serves CPU and memory profiles at /debug/pprof/, for developers: a loopback address, like 127.0.0.1:7336. Empty: nowhere."`
	ShutdownWait   time.Duration `env:"NGIT_SHUTDOWN_WAIT" name:"shutdown-wait" default:"20s" min:"0s" max:"1h" help:"How long a graceful stop may take. Requests that are under way get nine tenths of it, or half if the process runs several services."`
}
