package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"tendril.dev/test/fixture"
)

var must = fixture.Must

const (
	npub = "npub180cvv07tjdrrgpa0j7j7tmnyl2yr6yr7l8j4s3evf6u64th6gkwsyjh6w6"
	nsec = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"
)

// parse reads settings from a given environment and `.env`, not from the process's.
func parse(t *testing.T, args, environ []string, dotenv string) (Settings, error) {
	t.Helper()
	src := &Source{Environ: environ, Dir: t.TempDir()}
	must(t, os.WriteFile(filepath.Join(src.Dir, ".env"), []byte(dotenv), 0o600))
	return src.Parse(args)
}

// TestValues: flags over environment over file over defaults, and every form in which a value may
// be written, by shells and other GRASP servers too.
func TestValues(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "settings")
	must(t, os.WriteFile(file, []byte("NGIT_RELAY_NAME=named\n"), 0o600))
	words := strings.NewReplacer("«npub»", npub, "«nsec»", nsec, "«file»", file, "«data»", DefaultGitDataPath, "«mark»", "\ufeff")
	breaks := strings.NewReplacer("⏎", "\n", "␍", "\r")
	// Flags, environment, file, setting and value.
	for _, c := range fixture.Rows(words.Replace(`
		flag over environment | --relay-name=flag | NGIT_RELAY_NAME=env   |                               | RelayName           | flag
		environment over file |                   | NGIT_RELAY_NAME=env   | NGIT_RELAY_NAME=file          | RelayName           | env
		empty is unset        |                   | NGIT_RELAY_NAME=      | NGIT_RELAY_NAME=file          | RelayName           | file
		a named file          | --env-file=«file» | NGIT_ENV_FILE=/nowhere | NGIT_RELAY_NAME=file         | RelayName           | named
		named elsewhere       |                   | NGIT_ENV_FILE=«file»  | NGIT_RELAY_NAME=file          | RelayName           | named
		default               |                   |                       |                               | GitDataPath         | «data»
		a list                |                   | NGIT_REPOSITORY_WHITELIST=«npub», «npub»/tree ,bush | | RepositoryWhitelist | [«npub» «npub»/tree bush]
		a domain              | --domain=Git.Example.com/ |               |                               | Domain              | git.example.com
		a secret              |                   | NGIT_RELAY_OWNER_NSEC=«nsec» |                        | RelayOwnerNsec      | «nsec»
		default time          |                   |                       |                               | WorkerTTL           | 10s
		flag and value        | --metrics-enabled false --sync-max-backoff-secs 60 | |                    | MaxBackoffSeconds   | 60
		switch and value      | --sync-disable-negentropy --metrics-enabled false | |                     | MetricsEnabled      | false
		switch alone          | --metrics-enabled |                       |                               | MetricsEnabled      | true
		switched off          | --no-metrics-enabled |                    |                               | MetricsEnabled      | false
		switch with =         | --metrics-enabled=false |                 |                               | MetricsEnabled      | false
		switch by yes         | --metrics-enabled=yes |                   |                               | MetricsEnabled      | true
		switch in caps        |                   | NGIT_ALLOW_PRIVATE_NETWORKS=TRUE |                    | AllowPrivate        | true
		switch by digit       |                   | NGIT_ALLOW_PRIVATE_NETWORKS=1 |                       | AllowPrivate        | true
		switch by off         |                   | NGIT_METRICS_ENABLED=off |                            | MetricsEnabled      | false
		switch by 0           |                   | NGIT_METRICS_ENABLED=0 |                              | MetricsEnabled      | false
		size                  |                   | NGIT_MAX_PUSH_BYTES=64MiB |                           | MaxPushBytes        | 67108864
		size in bytes         |                   | NGIT_MAX_PUSH_BYTES=1048576 |                         | MaxPushBytes        | 1048576
		size with a space     |                   | NGIT_MAX_PUSH_BYTES=3 GiB |                           | MaxPushBytes        | 3221225472
		size in powers of 10  |                   | NGIT_MAX_PUSH_BYTES=5MB |                             | MaxPushBytes        | 5000000
		spaces                |                   |                       | NGIT_RELAY_NAME=My GRASP relay | RelayName          | My GRASP relay
		export                |                   |                       | # a comment⏎  export NGIT_RELAY_NAME = b ⏎ | RelayName | b
		single quotes         |                   |                       | NGIT_RELAY_NAME='b "c" $HOME # d' | RelayName       | b "c" $HOME # d
		double quotes         |                   |                       | NGIT_RELAY_NAME="b 'c' \"d\" \$HOME # e" | RelayName | b 'c' "d" $HOME # e
		comment               |                   |                       | NGIT_RELAY_NAME=b # c         | RelayName           | b
		no comment            |                   |                       | NGIT_RELAY_NAME=b#c           | RelayName           | b#c
		apostrophe            |                   |                       | NGIT_RELAY_NAME=Alice's relay | RelayName           | Alice's relay
		variable              |                   | HOME=/home/ann        | NGIT_RELAY_NAME=$HOME/x       | RelayName           | /home/ann/x
		in braces             |                   | HOME=/home/ann        | NGIT_RELAY_NAME="${HOME}/x"   | RelayName           | /home/ann/x
		earlier line          |                   |                       | A=b⏎NGIT_RELAY_NAME=${A}c     | RelayName           | bc
		two lines             |                   |                       | NGIT_RELAY_NAME="two⏎lines"   | RelayName           | two⏎lines
		a URL                 |                   |                       | NGIT_RELAY_NAME=nats://u:p=w@host:4222?x=#y | RelayName | nats://u:p=w@host:4222?x=#y
		also named            |                   | NGIT_SYNC_ALLOW_NON_GLOBAL_TARGETS=true | NGIT_BASE_PATH=/⏎NGIT_PRIVATE_MODE=false⏎NGIT_PRIVATE_MEMBERS=⏎NGIT_PRIVATE_PUBLIC_ORIGIN=https://git.example.com⏎NGIT_PRIVATE_MDOE= | AllowPrivate | true
		also named, seconds   |                   | NGIT_HOLDING_RETENTION_SECS=7776000 |  | DeletionGrace | 2160h0m0s
		its own name first    |                   | NGIT_HOLDING_RETENTION_SECS=60 | NGIT_DELETION_GRACE=1h | DeletionGrace | 1h0m0s
		empty list            |                   |                       | NGIT_REPOSITORY_WHITELIST= # none yet   | RepositoryWhitelist | []
		spaces in a list      |                   | NGIT_FORGET_LOG=a.example , b.example |              | ForgetLog           | [a.example b.example]
		twice                 |                   |                       | NGIT_RELAY_NAME=a⏎NGIT_RELAY_NAME=b | RelayName     | b
		level                 |                   | NGIT_LOG_LEVEL=debug,hyper=info |                     | LogLevel            | debug,hyper=info
		left out              |                   | NGIT_REPOSITORY_BLACKLIST=npub1spam..., spam-repo,alice/x/y | | RepositoryBlacklist | [spam-repo alice/x/y]
		left out too          |                   | NGIT_EVENT_BLACKLIST=npub1spam...,«npub» |            | EventBlacklist      | [«npub»]
		mark                  |                   |                       | «mark»NGIT_RELAY_NAME=b       | RelayName           | b
		CRLF                  |                   |                       | # x␍⏎␍⏎NGIT_RELAY_NAME=b␍⏎NGIT_RELAY_ICON=␍⏎ | RelayName | b`)) {
		s, err := parse(t, strings.Fields(c[1]), []string{"NGIT_DOMAIN=a.example", c[2]}, breaks.Replace(c[3]))
		if got := fmt.Sprint(reflect.ValueOf(s).FieldByName(c[4])); err != nil || got != breaks.Replace(c[5]) {
			t.Errorf("%s: %q, %v; want %q", c[0], got, err, c[5])
		}
	}
}

// TestBrokenEnvFile is named, and nothing of it is told.
func TestBrokenEnvFile(t *testing.T) {
	t.Parallel()
	_, err := parse(t, []string{"--env-file=/nowhere/settings", "--domain=a.example"}, nil, "")
	if err == nil || !strings.HasPrefix(err.Error(), `NGIT_ENV_FILE is "/nowhere/settings": cannot be read`) {
		t.Errorf("a named file that is not there: %v", err)
	}
	if _, err = parse(t, nil, nil, "NGIT_RELAY_OWNER_NSEC "+nsec+"\n"); err == nil || strings.Contains(err.Error(), "nsec1") {
		t.Errorf("a file that cannot be read: %v", err)
	}
}

// TestEnvironmentOfAnotherGRASPServer works unchanged: every name that its versions have, set to
// nothing, to its default there or to what a server in use has, as generated environments have it.
// None of them is unknown here, and what has the same default changes nothing.
func TestEnvironmentOfAnotherGRASPServer(t *testing.T) {
	t.Parallel()
	const theirs = `NGIT_BIND_ADDRESS=127.0.0.1:7334
NGIT_BASE_PATH=/
NGIT_RELAY_OWNER_NSEC=` + nsec + `
NGIT_RELAY_NAME="a.example grasp relay"
NGIT_RELAY_DESCRIPTION=
NGIT_GIT_DATA_PATH=./data/git
NGIT_RELAY_DATA_PATH=./data/relay
NGIT_DATABASE_BACKEND=lmdb
NGIT_METRICS_ENABLED=true
NGIT_METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD=10
NGIT_METRICS_TOP_N_REPOS=10
RUST_LOG=info
NGIT_LOG_LEVEL=info,hyper=warn
NGIT_SYNC_BOOTSTRAP_RELAY_URL=
NGIT_SYNC_MAX_BACKOFF_SECS=3600
NGIT_SYNC_DISCONNECT_CHECK_INTERVAL_SECS=60
NGIT_SYNC_BASE_BACKOFF_SECS=5
NGIT_SYNC_BATCH_WINDOW_MS=5000
NGIT_SYNC_DISABLE_NEGENTROPY=false
NGIT_SYNC_PLUS_ENABLED=false
NGIT_SYNC_PLUS_FALLBACK_RELAYS=
NGIT_USER_INDEX_RELAYS=
NGIT_SYNC_RECURSIVE_DESCENDANT_LIMIT=
NGIT_SYNC_ALLOW_NON_GLOBAL_TARGETS=false
NGIT_REJECTED_HOT_CACHE_DURATION_SECS=120
NGIT_REJECTED_COLD_INDEX_EXPIRY_SECS=604800
NGIT_NAUGHTY_LIST_EXPIRATION_HOURS=12
NGIT_HOLDING_RETENTION_SECS=7776000
NGIT_ARCHIVE_ALL=false
NGIT_ARCHIVE_WHITELIST=
NGIT_ARCHIVE_GRASP_SERVICES=
NGIT_ARCHIVE_READ_ONLY=
NGIT_GRASP06_ENABLE=false
NGIT_REPOSITORY_WHITELIST=
NGIT_REPOSITORY_BLACKLIST=
NGIT_EVENT_BLACKLIST=
NGIT_MAX_CONNECTIONS=4096
NGIT_RELAY_MAX_SUBSCRIPTIONS=50
NGIT_RELAY_FILTER_LIMIT=200
NGIT_RELAY_MAX_EVENT_SIZE_BYTES=
NGIT_TRUSTED_PROXY_CIDRS=
NGIT_PRIVATE_MODE=false
NGIT_PRIVATE_MEMBERS=
NGIT_PRIVATE_PUBLIC_ORIGIN=
`
	known := append(new(Source).known(), "RUST_LOG", doesNothing)
	for line := range strings.Lines(theirs) {
		if name, _, _ := strings.Cut(line, "="); !slices.Contains(known, name) {
			t.Errorf("%s is no setting", name)
		}
	}
	domain := []string{"NGIT_DOMAIN=a.example"}
	ours, err := parse(t, nil, domain, "")
	must(t, err)
	asFile, err := parse(t, nil, domain, theirs)
	must(t, err)
	environ := strings.Split(strings.ReplaceAll(theirs, `"`, ""), "\n")
	asEnvironment, err := parse(t, nil, append(environ, domain...), "")
	must(t, err)
	ours.RelayOwnerNsec, ours.RelayName, ours.LogLevel = nsec, "a.example grasp relay", "info,hyper=warn"
	ours.PlusEnabled, ours.IndexRelays, ours.FallbackRelays = false, []string{"none"}, []string{"none"}
	ours.MaxSubscriptions, ours.FilterLimit, ours.DatabaseBackend = 50, 200, "lmdb"
	for how, got := range map[string]Settings{"a file": asFile, "an environment": asEnvironment} {
		if !reflect.DeepEqual(got, ours) {
			t.Errorf("%s gives\n%+v\nwant\n%+v", how, got, ours)
		}
	}
}

// TestWarnings are of names that look like settings, and of settings that change nothing.
func TestWarnings(t *testing.T) {
	t.Parallel()
	const noEffect = " has no effect without NGIT_NATS_URL: it is for a NATS server of its own, and this process embeds one"
	for args, want := range map[string][]string{
		"": {"NGIT_BIND_ADRESS is set, but there is no such setting; NGIT_BIND_ADDRESS is meant?",
			"NGIT_RELAY_NMAE is set, but there is no such setting; NGIT_RELAY_NAME is meant?",
			"NGIT_SOMETHING_QUITE_ELSE is set, but there is no such setting"},
		"--repository-blacklist=npub1x --event-blacklist=npub1x": {
			`NGIT_REPOSITORY_BLACKLIST: the entry "npub1x" is left out: not a legal npub`, `NGIT_EVENT_BLACKLIST: the entry "npub1x" is left out: not a legal npub`},
		"--nats-login-file=x.login --nats-ca=ca.pem":                               {"NGIT_NATS_LOGIN_FILE" + noEffect, "NGIT_NATS_CA" + noEffect},
		"--nats-login-file=x.login --nats-ca=ca.pem --nats-url=nats://127.0.0.1:1": nil,
	} {
		environ, dotenv := []string{"NGIT_DOMAIN=a.example"}, ""
		if args == "" {
			environ, dotenv = append(environ, "NGIT_RELAY_NMAE=x", "NGIT_SOMETHING_QUITE_ELSE=1", "OTHER=1"), "NGIT_BIND_ADRESS=x\n"
		}
		if s, err := parse(t, strings.Fields(args), environ, dotenv); err != nil || !slices.Equal(s.Warnings, want) {
			t.Errorf("%s: %q, %v", args, s.Warnings, err)
		}
	}
}

func TestWrongValuesGiveOneSentence(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("NPUB", npub, "LONG", strings.Repeat("x", 73))
	for _, c := range fixture.Rows(words.Replace(`
		NGIT_DOMAIN=https://a.example                   | NGIT_DOMAIN is "https://a.example": want the public host name of this server without a scheme, like git.example.com, with a port if it is not 80 or 443
		NGIT_BIND_ADDRESS=7334                          | NGIT_BIND_ADDRESS is "7334": want host:port, like 127.0.0.1:7334
		NGIT_NATS_REPLICAS=2                            | NGIT_NATS_REPLICAS is "2": want 1, 3 or 5
		NGIT_NATS_REPLICAS=3                            | NGIT_NATS_REPLICAS is "3": want 1 without NGIT_NATS_URL, for the embedded NATS is a single server
		NGIT_NATS_LISTEN=4222                           | NGIT_NATS_LISTEN is "4222": want host:port, like 127.0.0.1:4222, or none
		NGIT_SYNC_BASE_BACKOFF_SECS=0                   | NGIT_SYNC_BASE_BACKOFF_SECS is "0": want 1 to 86400 seconds
		NGIT_SYNC_BASE_BACKOFF_SECS=7200                | NGIT_SYNC_BASE_BACKOFF_SECS is "7200": want at most NGIT_SYNC_MAX_BACKOFF_SECS, which is 3600
		NGIT_WORKER_TTL=10                              | NGIT_WORKER_TTL is "10": want a time with its unit, like 500ms, 30s, 5m or 24h
		NGIT_WORKER_TTL=10ms                            | NGIT_WORKER_TTL is "10ms": want 1s to 1h
		NGIT_MAX_CONNECTIONS=many                       | NGIT_MAX_CONNECTIONS is "many": want a whole number
		NGIT_MAX_CONNECTIONS=9223372036854775807        | NGIT_MAX_CONNECTIONS is "9223372036854775807": want 1 to 10000000
		NGIT_MAX_PUSH_BYTES=1.5XB                       | NGIT_MAX_PUSH_BYTES is "1.5XB": want a size, like 64MiB or 2GiB, or a number of bytes
		NGIT_MAX_PUSH_BYTES=9999TiB                     | NGIT_MAX_PUSH_BYTES is "10994016766132224": want 1KiB to 1024TiB
		NGIT_SYNC_DOMAIN_LIMITS=a.example:0:1           | NGIT_SYNC_DOMAIN_LIMITS is "a.example:0:1": want domain:concurrent:rate, like github.com:10:60, comma-separated
		NGIT_FORGET_LOG=a.example, b://                 | NGIT_FORGET_LOG is "b://": want the time or the domain that is in the error that stopped the start
		NGIT_NATS_CERT=a.pem                            | NGIT_NATS_CERT is "a.pem": want its key in NGIT_NATS_KEY as well
		NGIT_NATS_KEY=a.pem                             | NGIT_NATS_KEY is "a.pem": want its certificate in NGIT_NATS_CERT as well
		NGIT_NATS_PASSWORD=LONG                         | NGIT_NATS_PASSWORD is too long (its value is not shown): want at most 72 bytes
		NGIT_METRICS_ENABLED=perhaps                    | NGIT_METRICS_ENABLED is "perhaps": want true or false
		NGIT_LOG_LEVEL=loud                             | NGIT_LOG_LEVEL is "loud": want trace, debug, info, warn, error or off, or a filter that begins so, like debug,hyper=info
		NGIT_SYNC_BOOTSTRAP_RELAY_URL=ftp://a.example   | NGIT_SYNC_BOOTSTRAP_RELAY_URL is "ftp://a.example": relay URL: the scheme is not ws or wss; want relays like wss://relay.example.com, comma-separated
		NGIT_REPOSITORY_WHITELIST=npub1x                | NGIT_REPOSITORY_WHITELIST is "npub1x": not a legal npub; want npub, npub/identifier or identifier, comma-separated
		NGIT_REPOSITORY_WHITELIST=NPUB/                 | NGIT_REPOSITORY_WHITELIST is "NPUB/": the identifier (d tag) is missing or empty; want npub, npub/identifier or identifier, comma-separated
		NGIT_PRIVATE_MDOE=true                          | NGIT_PRIVATE_MDOE is set, but there is no such setting, and it seems to ask for protection: everyone could read what is here; unset it
		NGIT_PRIVATE_MEMBERS=NPUB                       | NGIT_PRIVATE_MEMBERS is "NPUB": NGIT_PRIVATE_MODE is not true, and everyone could read what is here; set it, or unset this
		NGIT_PRIVATE_PEERS=wss://a.example=NPUB         | NGIT_PRIVATE_PEERS is "wss://a.example=NPUB": NGIT_PRIVATE_MODE is not true, and everyone could read what is here; set it, or unset this
		NGIT_PRIVATE_MODE=true                          | NGIT_PRIVATE_MEMBERS is empty: a private service wants at least one member, npub1…
		NGIT_BASE_PATH=/gr asp                          | NGIT_BASE_PATH is "/gr asp": want a path like /grasp, of letters, digits, '-', '.', '_' and '~', whose first part is no npub; or / for the whole domain
		NGIT_BASE_PATH=/a/../b                          | NGIT_BASE_PATH is "/a/../b": want a path like /grasp, of letters, digits, '-', '.', '_' and '~', whose first part is no npub; or / for the whole domain
		NGIT_RELAY_OWNER_NSEC=nsec1secret               | NGIT_RELAY_OWNER_NSEC is not a secret key (its value is not shown): want nsec1… or 64 hex digits, or nothing for a generated key
		NGIT_NATS_URL=http://user:password@host.example | NGIT_NATS_URL is not the URL of a NATS server (its value is not shown): want nats://host:4222, or several, comma-separated
		NGIT_ARCHIVE_READ_ONLY=true                     | NGIT_ARCHIVE_READ_ONLY is "true": nothing is archived: want NGIT_ARCHIVE_ALL, NGIT_ARCHIVE_WHITELIST or NGIT_ARCHIVE_GRASP_SERVICES too, or unset it
		NGIT_ARCHIVE_GRASP_SERVICES=https://a.example   | NGIT_ARCHIVE_GRASP_SERVICES is "https://a.example": want the domains of GRASP services without a scheme, like git.example.com, comma-separated
		NGIT_ARCHIVE_GRASP_SERVICES=Git.Example.com:443 | NGIT_ARCHIVE_GRASP_SERVICES is "Git.Example.com:443": that is NGIT_DOMAIN: what lists this service is hosted, not archived; take it out
		NGIT_TRUSTED_PROXIES=localhost                  | NGIT_TRUSTED_PROXIES is "localhost": want addresses and networks, like 127.0.0.1 or 10.0.0.0/8, comma-separated`)) {
		_, err := parse(t, nil, []string{c[0]}, "NGIT_DOMAIN=git.example.com\n")
		if wrong, is := errors.AsType[*Error](err); !is || wrong.Error() != c[1] {
			t.Errorf("%s:\n got %v\nwant %s", c[0], err, c[1])
		}
	}
	for args, want := range map[string]string{
		"--git-data-path=x":  "NGIT_DOMAIN is not set: want the public host name",
		"--git-processes=x":  `NGIT_GIT_PROCESSES is "x": want a whole number`,
		"--domian=a.example": "unknown flag --domian, did you mean",
	} {
		if _, err := parse(t, []string{args}, nil, ""); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
	for _, wrong := range []string{"10.0.0.0/33", "10.0.0.1:80", "fe80::1%eth0", "*", "::ffff:10.0.0.0/104"} {
		if proxies, err := (Front{TrustedProxies: []string{wrong}}).Proxies(); err == nil {
			t.Errorf("a proxy %q is %v", wrong, proxies)
		}
	}
	s, err := parse(t, []string{"--nats-url=nats://a:4222, b", "--nats-replicas=3", "--domain=a.example"}, []string{"NGIT_TRUSTED_PROXIES=127.0.0.1, 10.0.0.0/8,2001:db8::1,::ffff:192.0.2.1"}, "")
	must(t, err)
	if proxies, err := s.Proxies(); err != nil || fmt.Sprint(proxies) != "[127.0.0.1/32 10.0.0.0/8 2001:db8::1/128 192.0.2.1/32]" {
		t.Errorf("%v, %v", proxies, err)
	}
}

// TestDeclaration holds every setting to what the rest of this package takes for granted: a name of
// its own with a flag like it, help that is a sentence, a range, and a place in the reference. The
// short help fits one screen, the long one has every setting.
func TestDeclaration(t *testing.T) {
	t.Parallel()
	var flags map[string]string // settings by the names of flags
	help := func(arg string) string {
		var out strings.Builder
		var grammar struct {
			Settings `embed:""`
			HelpAll  HelpAll `help:"Print all."`
		}
		parser, err := NewParser(&grammar, &Source{}, kong.Name("test"), kong.Writers(&out, &out), kong.Exit(func(int) {}))
		must(t, err)
		flags = map[string]string{}
		for _, flag := range parser.Model.Flags {
			flags[flag.Name] = flag.Tag.Get("env")
		}
		parser.Parse([]string{arg})
		return out.String()
	}
	short, long, reference := help("--help"), help("--help-all"), markdown()
	if lines := strings.Count(short, "\n"); lines > 24 || !strings.Contains(short, "--domain=HOST") || !strings.Contains(short, "--help-all") {
		t.Errorf("--help has %d lines:\n%s", lines, short)
	}
	seen, count := map[string]bool{}, 0
	for f := range new(Settings).fields() {
		name := f.name()
		like := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
		if !strings.HasPrefix(name, prefix) || seen[name] || !strings.HasSuffix(f.Tag.Get("help"), ".") {
			t.Errorf("%s: wants an NGIT_ name of its own, and help that is a sentence", name)
		}
		seen[name] = true
		for where, has := range map[string]bool{
			"the flags": flags[like] == name, "--help-all": strings.Contains(long, "["+name+"]"), "the reference": strings.Contains(reference, "\n| `"+name+"` |"),
		} {
			if !has {
				t.Errorf("%s is not in %s", name, where)
			}
		}
		if k := f.Type.Kind(); (k == reflect.Int || k == reflect.Int64) && (f.Tag.Get("min") == "" || f.Tag.Get("max") == "") && name != "NGIT_NATS_REPLICAS" {
			t.Errorf("%s: has no range", name)
		}
		count++
	}
	if count > 85 {
		t.Errorf("%d settings: want at most 85", count)
	}
}

// TestExampleEnvironmentIsLegal, also with every line that is a comment taken in.
func TestExampleEnvironmentIsLegal(t *testing.T) {
	t.Parallel()
	for _, text := range []string{dotEnv(), strings.ReplaceAll(dotEnv(), "\n#NGIT_", "\nNGIT_")} {
		if s, err := parse(t, nil, nil, text); err != nil || len(s.Warnings) > 0 {
			t.Error(err, s.Warnings)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("NGIT_DOMAIN=a.example\nNGIT_MAX_PUSH_BYTES=1GiB\n")
	f.Add("NGIT_DOMAIN=\"${NGIT_DOMAIN}\"\nexport NGIT_REPOSITORY_WHITELIST='npub1/ x'\n")
	f.Add("NGIT_WORKER_TTL=9999999999h\nNGIT_NATS_URL=nats://%zz")
	f.Fuzz(func(t *testing.T, dotenv string) {
		s, err := parse(t, nil, []string{"NGIT_RELAY_OWNER_NSEC="}, dotenv)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one sentence: %v", err)
			}
			return
		}
		if err := s.Check(); err != nil {
			t.Errorf("checked settings are wrong: %v", err)
		}
	})
}

// TestArchiveSettingsThatContradictEachOtherStopTheStart, and those that do not are understood.
func TestArchiveSettingsThatContradictEachOtherStopTheStart(t *testing.T) {
	t.Parallel()
	// The error, or what is archived, and how.
	for _, c := range fixture.Rows(strings.ReplaceAll(`
		                                                               | false true 0
		NGIT_ARCHIVE_READ_ONLY=false                                   | false false 0
		NGIT_ARCHIVE_ALL=true                                          | true true 0
		NGIT_ARCHIVE_ALL=1 NGIT_ARCHIVE_READ_ONLY=1                    | true true 0
		NGIT_ARCHIVE_ALL=1 NGIT_ARCHIVE_READ_ONLY=0                    | true false 0
		NGIT_ARCHIVE_ALL=1 NGIT_ARCHIVE_WHITELIST=tree                 | true true 1
		NGIT_ARCHIVE_WHITELIST=tree NGIT_REPOSITORY_WHITELIST=bush     | true true 0
		NGIT_ARCHIVE_GRASP_SERVICES=a.example,b.example:8080           | true true 0
		NGIT_ARCHIVE_ALL=1 NGIT_ARCHIVE_GRASP_SERVICES=a.example       | NGIT_ARCHIVE_GRASP_SERVICES is "a.example": NGIT_ARCHIVE_ALL archives everything, not only what these host; unset one of the two
		NGIT_ARCHIVE_WHITELIST=x NGIT_ARCHIVE_GRASP_SERVICES=a.example | NGIT_ARCHIVE_GRASP_SERVICES is "a.example": NGIT_ARCHIVE_WHITELIST says what is archived, too; unset one of the two
		NGIT_ARCHIVE_WHITELIST=x,y NGIT_REPOSITORY_BLACKLIST=y         | NGIT_ARCHIVE_WHITELIST is "y": NGIT_REPOSITORY_BLACKLIST names it too, and that is never kept; take it out of one of the two
		NGIT_ARCHIVE_WHITELIST=NPUB/y NGIT_REPOSITORY_BLACKLIST=y      | NGIT_ARCHIVE_WHITELIST is "NPUB/y": NGIT_REPOSITORY_BLACKLIST names it too, and that is never kept; take it out of one of the two
		NGIT_ARCHIVE_WHITELIST=NPUB/y NGIT_REPOSITORY_BLACKLIST=NPUB   | NGIT_ARCHIVE_WHITELIST is "NPUB/y": NGIT_REPOSITORY_BLACKLIST names it too, and that is never kept; take it out of one of the two
		NGIT_ARCHIVE_WHITELIST=y,NPUB NGIT_REPOSITORY_BLACKLIST=NPUB/y | true true 0`, "NPUB", npub)) {
		s, err := parse(t, nil, strings.Fields(c[0]), "NGIT_DOMAIN=git.example.com\n")
		got := fmt.Sprint(s.Archives(), s.IsArchiveReadOnly(), len(s.Warnings))
		if err != nil {
			got = err.Error()
		}
		if got != c[1] {
			t.Errorf("%s:\n got %s\nwant %s", c[0], got, c[1])
		}
	}
}

// TestPlus: conversations elsewhere are read unless that is off, or the service is a private one, and
// an empty list of relays is none (GRASP-03).
func TestPlus(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		environ []string
		off     bool
		index   int
	}{
		"as it comes":     {nil, false, 3},
		"no index":        {[]string{"NGIT_USER_INDEX_RELAYS="}, false, 0},
		"switched off":    {[]string{"NGIT_SYNC_PLUS_ENABLED=false"}, true, 3},
		"private":         {[]string{"NGIT_PRIVATE_MODE=true", "NGIT_PRIVATE_MEMBERS=" + npub, "NGIT_SYNC_PLUS_ENABLED=true"}, true, 3},
		"another's index": {[]string{"NGIT_USER_INDEX_RELAYS=wss://index.example"}, false, 1},
	} {
		environ := append(tc.environ, "NGIT_DOMAIN=git.example.com")
		s, err := (&Source{Environ: environ, Dir: t.TempDir()}).Parse(nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plus, err := s.Plus()
		if err != nil || plus.Off != tc.off || len(plus.Index) != tc.index {
			t.Errorf("%s: %+v, %v", name, plus, err)
		}
	}
}

// TestPrivateSettings: of a private service with one member, what stops the start, by the setting that
// is named.
func TestPrivateSettings(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("NPUB", npub)
	for _, c := range fixture.Rows(words.Replace(`
		NGIT_PRIVATE_PEERS=wss://a.example=NPUB                                              |
		NGIT_PRIVATE_PEERS=ws://localhost:7000/base=NPUB                                     |
		NGIT_PRIVATE_PEERS=wss://a.example=NPUB NGIT_ARCHIVE_GRASP_SERVICES=a.example        |
		NGIT_PRIVATE_PUBLIC_ORIGIN=https://a.example:8443                                    |
		NGIT_PRIVATE_MEMBERS=NPUB,npub1x                                                     | NGIT_PRIVATE_MEMBERS
		NGIT_PRIVATE_PEERS=wss://a.example                                                   | NGIT_PRIVATE_PEERS
		NGIT_PRIVATE_PEERS=ws://a.example=NPUB                                               | NGIT_PRIVATE_PEERS
		NGIT_PRIVATE_PEERS=wss://a.example=npub1x                                            | NGIT_PRIVATE_PEERS
		NGIT_PRIVATE_PUBLIC_ORIGIN=a.example                                                 | NGIT_PRIVATE_PUBLIC_ORIGIN
		NGIT_PRIVATE_PUBLIC_ORIGIN=https://a.example/x                                       | NGIT_PRIVATE_PUBLIC_ORIGIN
		NGIT_GRASP06_ENABLE=true                                                             | NGIT_GRASP06_ENABLE
		NGIT_ARCHIVE_ALL=true                                                                | NGIT_ARCHIVE_ALL
		NGIT_PRIVATE_PEERS=wss://a.example=NPUB NGIT_ARCHIVE_GRASP_SERVICES=b.example        | NGIT_ARCHIVE_GRASP_SERVICES
	`)) {
		environ := append([]string{"NGIT_DOMAIN=git.example.com", "NGIT_PRIVATE_MODE=true", "NGIT_PRIVATE_MEMBERS=" + npub},
			strings.Fields(c[0])...)
		_, err := (&Source{Environ: environ, Dir: t.TempDir()}).Parse(nil)
		wrong, is := errors.AsType[*Error](err)
		if (err == nil) != (c[1] == "") || is && wrong.Setting != c[1] {
			t.Errorf("%s: %v", c[0], err)
		}
	}
}

// TestWhomAPrivateServiceAsks: its peers alone, over TLS unless they are on this machine; a public
// service asks anyone.
func TestWhomAPrivateServiceAsks(t *testing.T) {
	t.Parallel()
	private := []string{"NGIT_DOMAIN=git.example.com", "NGIT_PRIVATE_MODE=true", "NGIT_PRIVATE_MEMBERS=" + npub,
		"NGIT_PRIVATE_PEERS=wss://a.example/base=" + npub + ",ws://127.0.0.1:7000=" + npub}
	for environ, may := range map[string]map[string]bool{
		"private": {"wss://a.example/base": true, "https://a.example/base/npub1x/x.git": true, "wss://a.example": false,
			"https://a.example/npub1x/x.git": false, "http://a.example/base/x.git": false, "https://b.example/base": false,
			"http://127.0.0.1:7000/x.git": true, "http://127.0.0.1:7001/x.git": false, "https://a.example.evil/base": false},
		"public": {"wss://b.example": true},
	} {
		given := private
		if environ == "public" {
			given = private[:1]
		}
		s, err := (&Source{Environ: given, Dir: t.TempDir()}).Parse(nil)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := s.Hosting()
		if err != nil {
			t.Fatal(err)
		}
		for address, want := range may {
			if rules.MayAsk(address) != want {
				t.Errorf("%s: %s may be asked: %v", environ, address, !want)
			}
		}
	}
}
