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
	"time"

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
	src := &Source{Environ: environ, Dir: t.TempDir(), product: true}
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
		constant              |                   |                       |                               | BatchSize           | 500
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
		empty list            |                   |                       | NGIT_REPOSITORY_WHITELIST= # nobody yet | RepositoryWhitelist | []
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

// TestNamesOfAnotherGRASPServer are ours too, so that an existing environment works unchanged.
func TestNamesOfAnotherGRASPServer(t *testing.T) {
	t.Parallel()
	theirs := strings.Fields(`NGIT_DOMAIN NGIT_BIND_ADDRESS NGIT_RELAY_NAME NGIT_RELAY_DESCRIPTION NGIT_RELAY_OWNER_NSEC NGIT_GIT_DATA_PATH
		NGIT_RELAY_DATA_PATH NGIT_DATABASE_BACKEND NGIT_LOG_LEVEL NGIT_MAX_CONNECTIONS NGIT_REPOSITORY_WHITELIST NGIT_REPOSITORY_BLACKLIST
		NGIT_EVENT_BLACKLIST NGIT_ARCHIVE_ALL NGIT_ARCHIVE_WHITELIST NGIT_ARCHIVE_GRASP_SERVICES NGIT_ARCHIVE_READ_ONLY NGIT_GRASP06_ENABLE
		NGIT_SYNC_BOOTSTRAP_RELAY_URL NGIT_SYNC_BASE_BACKOFF_SECS NGIT_SYNC_MAX_BACKOFF_SECS NGIT_SYNC_DISABLE_NEGENTROPY NGIT_SYNC_BATCH_WINDOW_MS
		NGIT_SYNC_DISCONNECT_CHECK_INTERVAL_SECS NGIT_NAUGHTY_LIST_EXPIRATION_HOURS NGIT_REJECTED_HOT_CACHE_DURATION_SECS
		NGIT_REJECTED_COLD_INDEX_EXPIRY_SECS NGIT_METRICS_ENABLED NGIT_METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD NGIT_METRICS_TOP_N_REPOS`)
	for f := range new(Settings).fields() {
		if !f.fixed() {
			theirs = slices.DeleteFunc(theirs, func(name string) bool { return name == f.name() })
		}
	}
	if len(theirs) > 0 {
		t.Errorf("%q are no settings", theirs)
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
		NGIT_PRIVATE_MODE=true                          | NGIT_PRIVATE_MODE is "true": private services (GRASP-08) are not supported: everyone can read what is here; unset it
		NGIT_PRIVATE_MEMBERS=NPUB                       | NGIT_PRIVATE_MEMBERS is "NPUB": private services (GRASP-08) are not supported: everyone can read what is here; unset it
		NGIT_PRIVATE_MODE=1                             | NGIT_PRIVATE_MODE is "1": private services (GRASP-08) are not supported: everyone can read what is here; unset it
		NGIT_PRIVATE_PEERS=wss://a.example=NPUB         | NGIT_PRIVATE_PEERS is "wss://a.example=NPUB": private services (GRASP-08) are not supported: everyone can read what is here; unset it
		NGIT_PRIVATE_MDOE=true                          | NGIT_PRIVATE_MDOE is set, but there is no such setting, and it seems to ask for protection: everyone can read what is here; unset it
		NGIT_BASE_PATH=/grasp                           | NGIT_BASE_PATH is "/grasp": a path below the domain is not supported; want / or nothing
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
// short help fits one screen, the long one has every setting. Constants are in none of them.
func TestDeclaration(t *testing.T) {
	t.Parallel()
	var flags map[string]string // settings by the names of flags
	help := func(arg string) string {
		var out strings.Builder
		var grammar struct {
			Settings `embed:""`
			HelpAll  HelpAll `help:"Print all."`
		}
		parser, err := NewParser(&grammar, &Source{product: true}, kong.Name("test"), kong.Writers(&out, &out), kong.Exit(func(int) {}))
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
		name, isSetting := f.name(), !f.fixed()
		like := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
		if !strings.HasPrefix(name, prefix) || seen[name] || isSetting != strings.HasSuffix(f.Tag.Get("help"), ".") {
			t.Errorf("%s: wants an NGIT_ name of its own, and help that is a sentence or a constant value", name)
		}
		seen[name] = true
		for where, has := range map[string]bool{
			"the flags": flags[like] == name, "--help-all": strings.Contains(long, "["+name+"]"), "the reference": strings.Contains(reference, "\n| `"+name+"` |"),
		} {
			if has != isSetting {
				t.Errorf("%s is in %s: %v", name, where, has)
			}
		}
		if k := f.Type.Kind(); isSetting && (k == reflect.Int || k == reflect.Int64) && (f.Tag.Get("min") == "" || f.Tag.Get("max") == "") && name != "NGIT_NATS_REPLICAS" {
			t.Errorf("%s: has no range", name)
		}
		if isSetting {
			count++
		}
	}
	if count > 85 {
		t.Errorf("%d settings: want at most 85", count)
	}
}

// TestConstants have their values in the product, where neither a flag nor a variable changes them.
func TestConstants(t *testing.T) {
	t.Parallel()
	if _, err := parse(t, []string{"--domain=a.example", "--hunt-interval=1m"}, nil, ""); err == nil {
		t.Error("a constant has a flag")
	}
	s, err := parse(t, []string{"--domain=a.example"}, []string{"NGIT_HUNT_INTERVAL=1m"}, "")
	if err != nil || s.HuntInterval != time.Second || s.GitSpoolBytes != 16<<30 || s.PageSize != 500 {
		t.Errorf("%v, %v, %v, %v", s.HuntInterval, s.GitSpoolBytes, s.PageSize, err)
	}
	if want := "NGIT_HUNT_INTERVAL is set, but there is no such setting"; !slices.Equal(s.Warnings, []string{want}) {
		t.Errorf("%q", s.Warnings)
	}
	s, err = new(Source).Parse([]string{"--domain=a.example", "--hunt-interval=1m"})
	if err != nil || s.HuntInterval != time.Minute || s.GitSpoolBytes != 16<<30 {
		t.Errorf("in a test: %v, %v, %v", s.HuntInterval, s.GitSpoolBytes, err)
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
