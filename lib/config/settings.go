// Package config declares every setting of Tendril once. Flags, environment, `.env`, `--help` and
// docs/configuration.md are all made from this declaration.
//
// One declaration serves every service: an operator gives the same environment to each Deployment,
// and each takes what it needs. The groups are topics, not services.
//
// A setting is a field with kong's tags env (its name), default and help. The flag of NGIT_X_Y is
// --x-y. Our own tags are: min and max (its range), oneof (its values), address (it is host:port,
// like this), filled (it is not empty), main (--help shows it with this text; --help-all shows
// all), secret (never printed), noflag (no flag, and why) and also (names that other GRASP servers
// have for it). Sizes have type:"bytes" and are written 64MiB.
//
// A field with the tag constant is no setting: its value is fixed. Only tests change constants, in
// code or like settings (see testProgram).
package config

import "time"

//go:generate go test -run TestReferenceIsUpToDate . -update

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
	Domain           string `env:"NGIT_DOMAIN" main:"Public host name of this server. Required." placeholder:"HOST" help:"Our public host name, with a port if it is not 80 or 443. Announcements list it. Required."`
	BindAddress      string `env:"NGIT_BIND_ADDRESS" address:"127.0.0.1:7334" main:"Where this server listens." placeholder:"ADDRESS" default:"127.0.0.1:7334" help:"Where the front door listens: relay, git and web pages on one port."`
	RelayName        string `env:"NGIT_RELAY_NAME" main:"Name of the relay." placeholder:"NAME" help:"Name in the relay information document (NIP-11). Empty: '<domain> grasp relay'."`
	RelayIcon        string `env:"NGIT_RELAY_ICON" placeholder:"FILE|URL" help:"Icon of the relay: a PNG file, which is served at /icon.png, or an http(s) URL, which is named instead. Empty: one that comes with the program."`
	RelayDescription string `env:"NGIT_RELAY_DESCRIPTION" default:"Git repositories with nostr announcements: a GRASP server." help:"Description in the relay information document."`
	RelayOwnerNsec   string `env:"NGIT_RELAY_OWNER_NSEC" main:"Secret key of the operator." noflag:"every user of the machine could read it" secret:"" placeholder:"NSEC" help:"Secret key of the operator, nsec1… or 64 hex digits; its public key is named in the relay information document. The systemd credential relay_owner_nsec comes before it. Not set: the file .relay-owner.nsec in the working directory, or else a key file that is generated in the relay data folder."`
	RelayContact     string `env:"NGIT_RELAY_CONTACT" placeholder:"ADDRESS" help:"Contact of the operator in the relay information document: mailto:… or https://…."`
	RelayTerms       string `env:"NGIT_RELAY_TERMS_OF_SERVICE" placeholder:"URL" help:"Terms of service in the relay information document, an http(s) URL."`
	RelayBanner      string `env:"NGIT_RELAY_BANNER" placeholder:"URL" help:"Banner in the relay information document, an http(s) URL of a picture."`
	AllowPrivate     bool   `env:"NGIT_ALLOW_PRIVATE_NETWORKS" also:"NGIT_SYNC_ALLOW_NON_GLOBAL_TARGETS" help:"Allow connections to loopback, private and link-local addresses. For tests and closed networks."`
	EnvFile          string `env:"NGIT_ENV_FILE" main:"File of settings. Empty: .env, if there is one." placeholder:"FILE" help:"File of settings, NAME=value a line; flags and the environment come before it. Empty: .env in the working directory, if there is one."`

	// Constants.
	WorkerName string `env:"NGIT_WORKER_NAME" constant:""`
}

// DefaultGitDataPath is the git folder where the operator names none.
const DefaultGitDataPath = "./data/git"

// Storage says where data lies.
type Storage struct {
	GitDataPath     string `env:"NGIT_GIT_DATA_PATH" filled:"a folder, like ./data/git" main:"Folder of git repositories." placeholder:"FOLDER" default:"./data/git" help:"Folder of the git repositories."`
	RelayDataPath   string `env:"NGIT_RELAY_DATA_PATH" filled:"a folder, like ./data/relay" main:"Folder of events." placeholder:"FOLDER" default:"./data/relay" help:"Folder of the event log and its index."`
	DatabaseBackend string `env:"NGIT_DATABASE_BACKEND" default:"file" help:"'memory': keep nothing on disk, except a git folder that NGIT_GIT_DATA_PATH names. Any other value: use the folders."`

	// Constants.
	IndexCacheBytes int64 `env:"NGIT_INDEX_CACHE_BYTES" type:"bytes" constant:"64MiB"`
}

// Bus says which NATS to use.
type Bus struct {
	NATSURL       string        `env:"NGIT_NATS_URL" main:"NATS server. Empty: one is embedded." placeholder:"URL" help:"URL of a NATS server with JetStream. Empty: one is embedded."`
	NATSLoginFile string        `env:"NGIT_NATS_LOGIN_FILE" placeholder:"FILE" help:"Login for NATS: a file with one line, user:password. It is read again at every connect, so that a new password needs no restart. 'tendril logins' makes such files."`
	NATSCreds     string        `env:"NGIT_NATS_CREDS" help:"Credentials file for NATS."`
	NATSCA        string        `env:"NGIT_NATS_CA" placeholder:"FILE" help:"Certificates (PEM) of authorities that may sign that of the NATS server; the connection is then always encrypted. Empty: those of the system, for a URL tls://…."`
	NATSCert      string        `env:"NGIT_NATS_CERT" placeholder:"FILE" help:"Own certificate (PEM) for a NATS server that wants one."`
	NATSKey       string        `env:"NGIT_NATS_KEY" placeholder:"FILE" help:"Key (PEM) of NGIT_NATS_CERT."`
	NATSReplicas  int           `env:"NGIT_NATS_REPLICAS" oneof:"1, 3 or 5" default:"1" help:"Replicas of streams and buckets: 1, 3 or 5."`
	NATSListen    string        `env:"NGIT_NATS_LISTEN" address:"127.0.0.1:4222, or none" default:"127.0.0.1:4222" help:"Where the embedded NATS listens for operators ('nats sub'). 'none': nowhere."`
	NATSPassword  string        `env:"NGIT_NATS_PASSWORD" secret:"" placeholder:"PASSWORD" help:"Password of the user 'operator' at the embedded NATS, who may read everything, write bans and use 'tendril repo', and of the user 'import', for 'tendril import'; other users are refused. Empty: no password, and every connection may do everything."`
	ForgetLog     []string      `env:"NGIT_FORGET_LOG" help:"Accepts a lost log or a changed domain: copy the time or the old domain from the error that stopped the start. Comma-separated."`
	WorkerTTL     time.Duration `env:"NGIT_WORKER_TTL" default:"10s" min:"1s" max:"1h" help:"A worker whose heartbeat is older than this is dead and its claims are free."`

	// Constants.
	CandidateBytes int64         `env:"NGIT_CANDIDATE_QUEUE_BYTES" type:"bytes" constant:"64MiB"`
	CandidateWait  time.Duration `env:"NGIT_CANDIDATE_ACK_WAIT" constant:"10s"`
	BatchSize      int           `env:"NGIT_COMMIT_BATCH" constant:"500"`
}

// Policy says what is accepted.
type Policy struct {
	RepositoryWhitelist  []string      `env:"NGIT_REPOSITORY_WHITELIST" main:"Host only these repositories." placeholder:"LIST" help:"Only host these: npub, npub/identifier or identifier, comma-separated."`
	RepositoryBlacklist  []string      `env:"NGIT_REPOSITORY_BLACKLIST" main:"Never host these repositories." placeholder:"LIST" help:"Never host these: npub, npub/identifier or identifier, comma-separated. Malformed entries are warned of and left out."`
	EventBlacklist       []string      `env:"NGIT_EVENT_BLACKLIST" help:"Accept nothing signed by these npubs, comma-separated. Malformed entries are warned of and left out."`
	IgnoreDeletions      bool          `env:"NGIT_DELETION_REQUEST_DISRESPECTOR" help:"Store deletion requests but keep the accepted events that they name."`
	RejectedHotSeconds   int           `env:"NGIT_REJECTED_HOT_CACHE_DURATION_SECS" default:"120" min:"0" max:"315360000" help:"How long a rejected event is kept whole, in seconds, in case what it misses arrives."`
	RejectedColdSeconds  int           `env:"NGIT_REJECTED_COLD_INDEX_EXPIRY_SECS" default:"604800" min:"1" max:"315360000" help:"How long the id of a rejected event is remembered, in seconds."`
	LargestEvent         int64         `env:"NGIT_RELAY_MAX_EVENT_SIZE_BYTES" name:"relay-max-event-size-bytes" type:"bytes" default:"192KiB" min:"1KiB" max:"512KiB" help:"Largest event of a kind that has no bound of its own. A patch or a state has at most 512KiB."`
	HoldDuration         time.Duration `env:"NGIT_PURGATORY_HOLD" default:"30m" min:"1ms" max:"8760h" help:"How long an event waits in purgatory for its git data."`
	ArchiveAll           bool          `env:"NGIT_ARCHIVE_ALL" help:"Archive every repository that is seen (GRASP-05), also those whose announcement does not list this service."`
	ArchiveWhitelist     []string      `env:"NGIT_ARCHIVE_WHITELIST" help:"Archive these (GRASP-05), though they do not list this service: npub, npub/identifier or identifier, comma-separated."`
	ArchiveServices      []string      `env:"NGIT_ARCHIVE_GRASP_SERVICES" help:"Archive what these GRASP services host (GRASP-05): domains without a scheme, comma-separated. Not together with NGIT_ARCHIVE_ALL or NGIT_ARCHIVE_WHITELIST."`
	ArchiveReadOnly      *bool         `env:"NGIT_ARCHIVE_READ_ONLY" help:"Refuse pushes to archived repositories (GRASP-05). Empty: true. false: they are taken as pushes to hosted repositories are. What lists this service can always be pushed to."`
	ContributorPRs       bool          `env:"NGIT_GRASP06_ENABLE" help:"Take the pull requests of contributors at /prs/<npub>/<identifier>.git, for any repository (GRASP-06)."`
	DeletionGrace        time.Duration `env:"NGIT_DELETION_GRACE" default:"168h" min:"0s" max:"87600h" help:"How long the git data of a repository is kept after its owner has deleted it or moved it away. An announcement within that time brings it back."`
	LogMaxBytes          int64         `env:"NGIT_LOG_MAX_BYTES" type:"bytes" default:"0" min:"0" max:"1024TiB" help:"Size of the event log above which only owners and maintainers of served repositories may add data. 0: 80% of what the store may hold."`
	DailyAuthorBytes     int64         `env:"NGIT_DAILY_AUTHOR_BYTES" type:"bytes" default:"64MiB" min:"0" max:"1024TiB" help:"Most bytes of events that are stored of one author in a day. Owners and maintainers of served repositories have ten times that. 0: no limit."`
	DailyAddressBytes    int64         `env:"NGIT_DAILY_ADDRESS_BYTES" type:"bytes" default:"64MiB" min:"0" max:"1024TiB" help:"Most bytes of events that are stored from one client address in a day. 0: no limit."`
	DailyRelayBytes      int64         `env:"NGIT_DAILY_RELAY_BYTES" type:"bytes" default:"1GiB" min:"0" max:"1024TiB" help:"Most bytes of events that are stored from one relay in a day; the rest is read later. Bootstrap relays have ten times that. 0: no limit."`
	DailyAuthorGitBytes  int64         `env:"NGIT_DAILY_AUTHOR_GIT_BYTES" type:"bytes" default:"4GiB" min:"0" max:"1024TiB" help:"Most bytes of git data, pushed or fetched, that are stored for one author in a day: the owner of the repository, or the author of the pull request that brings them. Owners and maintainers of served repositories have ten times that. 0: no limit."`
	DailyAddressGitBytes int64         `env:"NGIT_DAILY_ADDRESS_GIT_BYTES" type:"bytes" default:"8GiB" min:"0" max:"1024TiB" help:"Most bytes of git data that are stored from one client address in a day. 0: no limit."`

	// Constants.
	HeldBytes        int           `env:"NGIT_PURGATORY_MAX_BYTES" type:"bytes" constant:"128MiB"`
	SilentDuration   time.Duration `env:"NGIT_PURGATORY_SILENT" constant:"24h"`
	MaxFutureSeconds int           `env:"NGIT_MAX_FUTURE_SECS" constant:"900"`
}

// Sync says how other relays are followed.
type Sync struct {
	BootstrapRelays     []string `env:"NGIT_SYNC_BOOTSTRAP_RELAY_URL" main:"Relays to sync from first." placeholder:"URLS" help:"Relays to sync from at the start, comma-separated; wss is assumed without a scheme."`
	BaseBackoffSeconds  int      `env:"NGIT_SYNC_BASE_BACKOFF_SECS" default:"5" min:"1" max:"86400" help:"First wait after a failed connection, and the connect timeout, in seconds."`
	MaxBackoffSeconds   int      `env:"NGIT_SYNC_MAX_BACKOFF_SECS" default:"3600" min:"1" max:"604800" help:"Longest wait after failed connections, in seconds."`
	DisableNegentropy   bool     `env:"NGIT_SYNC_DISABLE_NEGENTROPY" help:"Never ask other relays by NIP-77 (negentropy), always by REQ."`
	BatchWindowMillis   int      `env:"NGIT_SYNC_BATCH_WINDOW_MS" default:"5000" min:"0" max:"3600000" help:"How long changes are collected before they become one change of targets, in milliseconds."`
	CheckSeconds        int      `env:"NGIT_SYNC_DISCONNECT_CHECK_INTERVAL_SECS" default:"2" min:"1" max:"3600" help:"How often a worker looks after its relays, in seconds."`
	NaughtyHours        int      `env:"NGIT_NAUGHTY_LIST_EXPIRATION_HOURS" default:"12" min:"1" max:"8760" help:"How long a relay with DNS, TLS or protocol errors of its own is left alone, in hours."`
	StartupJitterMillis int      `env:"NGIT_SYNC_STARTUP_JITTER_MS" default:"10000" min:"0" max:"3600000" help:"Connections of a start are spread over this time, in milliseconds."`
	StartupDelaySeconds int      `env:"NGIT_SYNC_STARTUP_DELAY_SECS" default:"0" min:"0" max:"86400" help:"Holds back the first historic sync, in seconds."`

	// Constants.
	ReconnectWindow   time.Duration `env:"NGIT_SYNC_RECONNECT_WINDOW" constant:"15m"`
	DailyMin          time.Duration `env:"NGIT_SYNC_DAILY_MIN" constant:"23h"`
	DailyMax          time.Duration `env:"NGIT_SYNC_DAILY_MAX" constant:"25h"`
	StableAfter       time.Duration `env:"NGIT_SYNC_STABLE_AFTER" constant:"5m"`
	DeadAfter         time.Duration `env:"NGIT_SYNC_DEAD_AFTER" constant:"24h"`
	RateLimitCooldown time.Duration `env:"NGIT_SYNC_RATE_LIMIT_COOLDOWN" constant:"65s"`
	PageSize          int           `env:"NGIT_SYNC_PAGE_LIMIT" constant:"500"`
	SilenceTimeout    time.Duration `env:"NGIT_SYNC_REQ_TIMEOUT" constant:"60s"`
	ConsolidateWait   time.Duration `env:"NGIT_SYNC_CONSOLIDATE_WAIT" constant:"60s"`
	BatchesAtOnce     int           `env:"NGIT_SYNC_FILTERS_AT_ONCE" constant:"16"`
	MaxFilters        int           `env:"NGIT_SYNC_MAX_FILTERS" name:"sync-max-filters" constant:"70"`
	MaxEventBytes     int64         `env:"NGIT_SYNC_MAX_MESSAGE_BYTES" type:"bytes" constant:"1MiB"`
}

// Git says how git data is kept, hunted and served.
type Git struct {
	GitListen        string   `env:"NGIT_GIT_LISTEN" address:"127.0.0.1:0 or 0.0.0.0:7336" default:"127.0.0.1:0" help:"Where a purgatory worker serves git to the front doors. Port 0: any."`
	MaxFetchBytes    int64    `env:"NGIT_MAX_FETCH_BYTES" type:"bytes" default:"2GiB" min:"1KiB" max:"1024TiB" help:"Largest pack fetched."`
	MaxPushBytes     int64    `env:"NGIT_MAX_PUSH_BYTES" type:"bytes" default:"4GiB" min:"1KiB" max:"1024TiB" help:"Largest push taken."`
	GitProcesses     int      `env:"NGIT_GIT_PROCESSES" default:"32" min:"1" max:"100000" help:"Most git processes at once in a worker; more wait."`
	DomainConcurrent int      `env:"NGIT_SYNC_DOMAIN_CONCURRENT" default:"5" min:"1" max:"10000" help:"Most requests at once to one git server."`
	DomainRateLimit  int      `env:"NGIT_SYNC_DOMAIN_RATE_LIMIT" default:"60" min:"1" max:"1000000" help:"Most requests to one git server in any 60 seconds."`
	DomainLimits     []string `env:"NGIT_SYNC_DOMAIN_LIMITS" help:"Limits of single git servers, domain:concurrent:rate, comma-separated."`

	// Constants.
	GitAdvertise     string        `env:"NGIT_GIT_ADVERTISE" constant:""`
	GitBinary        string        `env:"NGIT_GIT_BINARY" constant:"git"`
	HuntUserDelay    time.Duration `env:"NGIT_HUNT_USER_DELAY" constant:"3m"`
	HuntSyncDelay    time.Duration `env:"NGIT_HUNT_SYNC_DELAY" constant:"500ms"`
	HuntInterval     time.Duration `env:"NGIT_HUNT_INTERVAL" constant:"1s"`
	HuntBackoffBase  time.Duration `env:"NGIT_HUNT_BACKOFF_BASE" constant:"20s"`
	HuntBackoffMax   time.Duration `env:"NGIT_HUNT_BACKOFF_MAX" constant:"2m"`
	HuntsAtOnce      int           `env:"NGIT_HUNTS_AT_ONCE" constant:"32"`
	FetchTimeout     time.Duration `env:"NGIT_FETCH_TIMEOUT" constant:"1h"`
	FetchSilence     time.Duration `env:"NGIT_FETCH_SILENCE" constant:"2m"`
	FetchMinRate     int64         `env:"NGIT_FETCH_MIN_RATE" constant:"1024"`
	GitProcessMemory int64         `env:"NGIT_GIT_PROCESS_MEMORY" type:"bytes" constant:"4GiB"`
	GitPackTime      time.Duration `env:"NGIT_GIT_PACK_TIME" constant:"30m"`
	GitSpoolBytes    int64         `env:"NGIT_GIT_SPOOL_BYTES" type:"bytes" constant:"16GiB"`
	GitStall         time.Duration `env:"NGIT_GIT_STALL" constant:"30s"`
	GitHandOverWait  time.Duration `env:"NGIT_GIT_HANDOVER_WAIT" constant:"30s"`
}

// Front says how clients are treated at the front door. "One address" is an
// IPv4 address or the /64 of an IPv6 address.
type Front struct {
	TrustedProxies       []string `env:"NGIT_TRUSTED_PROXIES" main:"Reverse proxies before this server." placeholder:"LIST" also:"NGIT_TRUSTED_PROXY_CIDRS" help:"Reverse proxies whose X-Forwarded-For is believed: addresses and networks like 10.0.0.0/8, comma-separated."`
	AuthRequired         string   `env:"NGIT_AUTH_REQUIRED" oneof:"none, read, write or both" default:"none" help:"What clients may do only after they have authenticated (NIP-42), with any key: none, read, write or both. Git and web pages never need it. Servers that cannot authenticate cannot sync from a relay that requires it for reading."`
	MaxConnections       int      `env:"NGIT_MAX_CONNECTIONS" default:"4096" min:"1" max:"10000000" help:"WebSocket connections at once. Above it, the client with the most loses one to a client with fewer."`
	MaxConnectionsPerIP  int      `env:"NGIT_MAX_CONNECTIONS_PER_IP" default:"256" min:"1" max:"10000000" help:"WebSocket connections at once per address."`
	EventsPerMinute      int      `env:"NGIT_EVENTS_PER_MINUTE" default:"60" min:"1" max:"10000000" help:"Events per minute per connection."`
	EventsPerMinutePerIP int      `env:"NGIT_EVENTS_PER_MINUTE_PER_IP" default:"240" min:"1" max:"10000000" help:"Events per minute per address, over all its connections."`
	MaxSubscriptions     int      `env:"NGIT_RELAY_MAX_SUBSCRIPTIONS" default:"500" min:"1" max:"100000" help:"Subscriptions at once per connection."`
	FilterLimit          int      `env:"NGIT_RELAY_FILTER_LIMIT" default:"0" min:"0" max:"100000" help:"Most stored events that a filter brings, and as many where it names no limit. 0: 5000, and 500 where it names none."`

	// Constants.
	OtherConnections      int           `env:"NGIT_OTHER_CONNECTIONS" constant:"4096"`
	OtherConnectionsPerIP int           `env:"NGIT_OTHER_CONNECTIONS_PER_IP" constant:"256"`
	MaxSubscriptionsPerIP int           `env:"NGIT_MAX_SUBSCRIPTIONS_PER_IP" constant:"4000"`
	MaxFilters            int           `env:"NGIT_MAX_FILTERS" constant:"20"`
	MaxFilterValues       int           `env:"NGIT_MAX_FILTER_VALUES" constant:"8192"`
	MaxFilterSteps        int           `env:"NGIT_MAX_FILTER_STEPS" constant:"2000000"`
	ClientBytes           int64         `env:"NGIT_CLIENT_BYTES" type:"bytes" constant:"512MiB"`
	ClientBytesPerIP      int64         `env:"NGIT_CLIENT_BYTES_PER_IP" type:"bytes" constant:"64MiB"`
	MaxReconciledEvents   int           `env:"NGIT_MAX_RECONCILED_EVENTS" constant:"250000"`
	MaxMessageBytes       int64         `env:"NGIT_MAX_MESSAGE_BYTES" constant:"1048576"`
	MessageTime           time.Duration `env:"NGIT_MESSAGE_TIME" constant:"1m"`
	MaxLimit              int           `env:"NGIT_MAX_LIMIT" constant:"5000"`
	DefaultLimit          int           `env:"NGIT_DEFAULT_LIMIT" constant:"500"`
	EventTimeout          time.Duration `env:"NGIT_EVENT_TIMEOUT" constant:"10s"`
	GitRequestsPerIP      int           `env:"NGIT_GIT_REQUESTS_PER_IP" constant:"128"`
	GitRequestsPerMinute  int           `env:"NGIT_GIT_REQUESTS_PER_MINUTE_PER_IP" constant:"600"`
	PagesPerMinute        int           `env:"NGIT_PAGES_PER_MINUTE_PER_IP" constant:"600"`
	AnswerStall           time.Duration `env:"NGIT_ANSWER_STALL" constant:"2m"`
}

// Observe says how we are watched.
type Observe struct {
	LogLevel       string        `env:"NGIT_LOG_LEVEL" main:"debug, info, warn, error or off." placeholder:"LEVEL" default:"info" help:"trace, debug, info, warn, error or off, or a filter like debug,hyper=info, of which the first level counts. trace is debug."`
	LogFormat      string        `env:"NGIT_LOG_FORMAT" oneof:"text or json" default:"text" help:"text or json."`
	MetricsEnabled bool          `env:"NGIT_METRICS_ENABLED" default:"true" negatable:"" help:"Serve /metrics."`
	AbuseThreshold int           `env:"NGIT_METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD" default:"10" min:"0" max:"1000000" help:"An address with more WebSocket connections than this counts as an abuser in the metrics."`
	TopRepos       int           `env:"NGIT_METRICS_TOP_N_REPOS" default:"10" min:"0" max:"1000" help:"How many repositories the metric ngit_git_top_repos_bytes names, those with the most git traffic. 0: none."`
	ObserveAddress string        `env:"NGIT_OBSERVE_ADDRESS" address:"127.0.0.1:7335" help:"Where /metrics, /healthz, /readyz, /debug/pprof and /loglevel are served. Empty: tendril up has the first three on the front port, tendril run has all at 127.0.0.1:7335."`
	ShutdownWait   time.Duration `env:"NGIT_SHUTDOWN_WAIT" default:"20s" min:"0s" max:"1h" help:"How long a graceful stop may take. Requests that are under way get nine tenths of it, or half if the process runs several services."`
}
