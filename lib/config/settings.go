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
// What no operator would change is no setting but a Go constant beside its use.
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
	Private `embed:"" group:"Private service"`
	Observe `embed:"" group:"Observation"`

	// Warnings are what the operator should know about where the settings came from, like a name
	// that is none of ours.
	Warnings []string `kong:"-"`
}

// Service says who we are and where we listen.
type Service struct {
	Domain           string `env:"NGIT_DOMAIN" main:"Public host name of this server. Required." placeholder:"HOST" help:"Our public host name, with a port if it is not 80 or 443. Announcements list it. Required."`
	BasePath         string `env:"NGIT_BASE_PATH" placeholder:"PATH" default:"/" help:"Path of the domain below which everything lies: relay, git and pages. A reverse proxy passes requests on with it. Announcements list addresses below it."`
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
}

// DefaultGitDataPath is the git folder where the operator names none.
const DefaultGitDataPath = "./data/git"

// Storage says where data lies.
type Storage struct {
	GitDataPath     string `env:"NGIT_GIT_DATA_PATH" filled:"a folder, like ./data/git" main:"Folder of git repositories." placeholder:"FOLDER" default:"./data/git" help:"Folder of the git repositories."`
	RelayDataPath   string `env:"NGIT_RELAY_DATA_PATH" filled:"a folder, like ./data/relay" main:"Folder of events." placeholder:"FOLDER" default:"./data/relay" help:"Folder of the event log and its index."`
	DatabaseBackend string `env:"NGIT_DATABASE_BACKEND" default:"file" help:"'memory': keep nothing on disk, except a git folder that NGIT_GIT_DATA_PATH names. Any other value: use the folders."`
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
}

// Policy says what is accepted.
type Policy struct {
	RepositoryWhitelist  []string      `env:"NGIT_REPOSITORY_WHITELIST" main:"Host only these repositories." placeholder:"LIST" help:"Only host these: npub, npub/identifier or identifier, comma-separated."`
	RepositoryBlacklist  []string      `env:"NGIT_REPOSITORY_BLACKLIST" main:"Never host these repositories." placeholder:"LIST" help:"Never host these: npub, npub/identifier or identifier, comma-separated. Malformed entries are warned of and left out."`
	EventBlacklist       []string      `env:"NGIT_EVENT_BLACKLIST" help:"Accept nothing signed by these npubs, comma-separated. Malformed entries are warned of and left out."`
	IgnoreDeletions      bool          `env:"NGIT_DELETION_REQUEST_DISRESPECTOR" help:"Store deletion requests (NIP-09) and requests to vanish (NIP-62), and do nothing that they ask for."`
	RejectedHotSeconds   int           `env:"NGIT_REJECTED_HOT_CACHE_DURATION_SECS" default:"120" min:"0" max:"315360000" help:"How long a rejected event is kept whole, in seconds, in case what it misses arrives."`
	RejectedColdSeconds  int           `env:"NGIT_REJECTED_COLD_INDEX_EXPIRY_SECS" default:"604800" min:"1" max:"315360000" help:"How long the id of a rejected event is remembered, in seconds."`
	LargestEvent         int64         `env:"NGIT_RELAY_MAX_EVENT_SIZE_BYTES" name:"relay-max-event-size-bytes" type:"bytes" default:"192KiB" min:"1KiB" max:"512KiB" help:"Largest event of a kind that has no bound of its own. A patch or a state has at most 512KiB."`
	HoldDuration         time.Duration `env:"NGIT_PURGATORY_HOLD" default:"30m" min:"1ms" max:"8760h" help:"How long an event waits in purgatory for its git data."`
	ArchiveAll           bool          `env:"NGIT_ARCHIVE_ALL" help:"Archive every repository that is seen (GRASP-05), also those whose announcement does not list this service."`
	ArchiveWhitelist     []string      `env:"NGIT_ARCHIVE_WHITELIST" help:"Archive these (GRASP-05), though they do not list this service: npub, npub/identifier or identifier, comma-separated."`
	ArchiveServices      []string      `env:"NGIT_ARCHIVE_GRASP_SERVICES" help:"Archive what these GRASP services host (GRASP-05): domains without a scheme, comma-separated. Not together with NGIT_ARCHIVE_ALL or NGIT_ARCHIVE_WHITELIST."`
	ArchiveReadOnly      *bool         `env:"NGIT_ARCHIVE_READ_ONLY" help:"Refuse pushes to archived repositories (GRASP-05). Empty: true. false: they are taken as pushes to hosted repositories are. What lists this service can always be pushed to."`
	ContributorPRs       bool          `env:"NGIT_GRASP06_ENABLE" help:"Take the pull requests of contributors at /prs/<npub>/<identifier>.git, for any repository (GRASP-06)."`
	DeletionGrace        time.Duration `env:"NGIT_DELETION_GRACE" also:"NGIT_HOLDING_RETENTION_SECS" default:"2160h" min:"0s" max:"87600h" help:"How long a repository's git data, and the events that only it needed, are kept after its owner has deleted it, moved it away or vanished. An announcement within that time brings it all back. NGIT_HOLDING_RETENTION_SECS is the same in seconds."`
	LogMaxBytes          int64         `env:"NGIT_LOG_MAX_BYTES" type:"bytes" default:"0" min:"0" max:"1024TiB" help:"Size of the event log above which only owners and maintainers of served repositories may add data. 0: 80% of what the store may hold."`
	DailyAuthorBytes     int64         `env:"NGIT_DAILY_AUTHOR_BYTES" type:"bytes" default:"64MiB" min:"0" max:"1024TiB" help:"Most bytes of events that are stored of one author in a day. Owners and maintainers of served repositories have ten times that. 0: no limit."`
	DailyAddressBytes    int64         `env:"NGIT_DAILY_ADDRESS_BYTES" type:"bytes" default:"64MiB" min:"0" max:"1024TiB" help:"Most bytes of events that are stored from one client address in a day. 0: no limit."`
	DailyRelayBytes      int64         `env:"NGIT_DAILY_RELAY_BYTES" type:"bytes" default:"1GiB" min:"0" max:"1024TiB" help:"Most bytes of events that are stored from one relay in a day; the rest is read later. Bootstrap relays have ten times that. 0: no limit."`
	DailyAuthorGitBytes  int64         `env:"NGIT_DAILY_AUTHOR_GIT_BYTES" type:"bytes" default:"4GiB" min:"0" max:"1024TiB" help:"Most bytes of git data, pushed or fetched, that are stored for one author in a day: the owner of the repository, or the author of the pull request that brings them. Owners and maintainers of served repositories have ten times that. 0: no limit."`
	DailyAddressGitBytes int64         `env:"NGIT_DAILY_ADDRESS_GIT_BYTES" type:"bytes" default:"8GiB" min:"0" max:"1024TiB" help:"Most bytes of git data that are stored from one client address in a day. 0: no limit."`
}

// Sync says how other relays are followed.
type Sync struct {
	BootstrapRelays     []string `env:"NGIT_SYNC_BOOTSTRAP_RELAY_URL" main:"Relays to sync from first." placeholder:"URLS" help:"Relays to sync from at the start, comma-separated; wss is assumed without a scheme."`
	BaseBackoffSeconds  int      `env:"NGIT_SYNC_BASE_BACKOFF_SECS" default:"5" min:"1" max:"86400" help:"First wait after a failed connection, and the connect timeout, in seconds."`
	MaxBackoffSeconds   int      `env:"NGIT_SYNC_MAX_BACKOFF_SECS" default:"3600" min:"1" max:"604800" help:"Longest wait after failed connections, in seconds."`
	DisableNegentropy   bool     `env:"NGIT_SYNC_DISABLE_NEGENTROPY" help:"Never ask other relays by NIP-77 (negentropy), always by REQ."`
	BatchWindowMillis   int      `env:"NGIT_SYNC_BATCH_WINDOW_MS" default:"5000" min:"0" max:"3600000" help:"How long changes are collected before they become one change of targets, in milliseconds."`
	NaughtyHours        int      `env:"NGIT_NAUGHTY_LIST_EXPIRATION_HOURS" default:"12" min:"1" max:"8760" help:"How long a relay with DNS, TLS or protocol errors of its own is left alone, in hours."`
	StartupJitterMillis int      `env:"NGIT_SYNC_STARTUP_JITTER_MS" default:"10000" min:"0" max:"3600000" help:"Connections of a start are spread over this time, in milliseconds."`
	StartupDelaySeconds int      `env:"NGIT_SYNC_STARTUP_DELAY_SECS" default:"0" min:"0" max:"86400" help:"Holds back the first historic sync, in seconds."`
	DescendantLimit     int      `env:"NGIT_SYNC_RECURSIVE_DESCENDANT_LIMIT" default:"500" min:"0" max:"100000" help:"Most events of one thread below which replies are looked for that name only another reply."`
	PlusEnabled         bool     `env:"NGIT_SYNC_PLUS_ENABLED" default:"true" help:"Read the threads of served repositories also from the relays that their participants list (GRASP-03). A private service never does."`
	IndexRelays         []string `env:"NGIT_USER_INDEX_RELAYS" default:"wss://purplepag.es,wss://index.hzrd149.com,wss://indexer.coracle.social" help:"Relays that are asked for the relay lists and profiles of participants, comma-separated. none: none."`
	FallbackRelays      []string `env:"NGIT_SYNC_PLUS_FALLBACK_RELAYS" default:"wss://relay.ditto.pub,wss://relay.damus.io,wss://nos.lol,wss://relay.primal.net" help:"Relays of participants who have no relay list, comma-separated. none: none."`
	PlusMaxRelays       int      `env:"NGIT_SYNC_PLUS_MAX_RELAYS" default:"1000" min:"0" max:"100000" help:"Most further relays that participants list."`
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
}

// Private says whether the service is for its members alone (GRASP-08).
type Private struct {
	PrivateMode    bool     `env:"NGIT_PRIVATE_MODE" help:"Serve members alone (GRASP-08): each reads everything, and others read nothing."`
	PrivateMembers []string `env:"NGIT_PRIVATE_MEMBERS" help:"Members of a private service: npubs, comma-separated, at least one. 'tendril member' changes them at run time."`
	PrivatePeers   []string `env:"NGIT_PRIVATE_PEERS" help:"Other private services to sync with, wss://address=npub, comma-separated. Each is a member here, and gets proofs with our own key."`
	PrivateOrigin  string   `env:"NGIT_PRIVATE_PUBLIC_ORIGIN" placeholder:"ORIGIN" help:"Origin that the proofs of members name, like https://git.example.com. Empty: https:// and NGIT_DOMAIN; http:// where that is this machine."`
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
