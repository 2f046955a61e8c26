// Command tendril is a GRASP server: `tendril up` runs every service in one process over an
// embedded NATS (docs/architecture.md), `tendril run` some of them as one process of several.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/logins"
	"tendril.dev/lib/node"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/discovery"
	"tendril.dev/services/gateway"
	"tendril.dev/services/ingest"
	"tendril.dev/services/purgatory"
	"tendril.dev/services/relayconn"
)

type grammar struct {
	Up         up                `cmd:"" help:"Run all services in one process, with an embedded NATS unless NGIT_NATS_URL names another."`
	Run        runCommand        `cmd:"" help:"Run some of the services, for a system of several processes around one NATS server (NGIT_NATS_URL)."`
	Status     statusCommand     `cmd:"" help:"Show the state of a running system: relays, shards, held events, queues, and how far its processes are behind."`
	Why        whyCommand        `cmd:"" help:"Tell the story of an event, a repository or a relay: accepted, held, asked for, refused, and what can be done."`
	Tap        tapCommand        `cmd:"" help:"Show what happens, one line a step: relay, author, event, verdict, git data."`
	Repo       repoCommand       `cmd:"" help:"List and show the repositories of a running system; restore or remove those that are not hosted any more."`
	Ban        banCommand        `cmd:"" help:"Ban authors, repositories, identifiers or events in a running system, at once: what is stored is not served any more, and nothing new is taken."`
	Unban      unbanCommand      `cmd:"" help:"End bans: what was not removed is served again."`
	Bans       bansCommand       `cmd:"" help:"List what is banned. The blacklist settings are not among it."`
	Reports    reportsCommand    `cmd:"" help:"List the reports (NIP-56) about authors, events and repositories, the newest first, and whether these are banned."`
	Member     memberCommand     `cmd:"" help:"Add and remove members of a private service, or list them."`
	MakePublic makePublicCommand `cmd:"" help:"Accept that everything of a private service becomes public with the next start without NGIT_PRIVATE_MODE."`
	Credential credentialCommand `cmd:"" help:"Prove to a private service that you are a member: a credential helper of git, or the value of a header."`
	Name       nameCommand       `cmd:"" help:"Give repositories names, by which they are found as https://DOMAIN/NAME and nostr://DOMAIN/NAME.git."`
	Config     configCommand     `cmd:"" help:"Check the settings without a start: tendril config check."`
	Logins     loginsCommand     `cmd:"" help:"Make and rotate the logins of a NATS server that several processes share."`
	Export     exportCommand     `cmd:"" help:"Write the events of a running system as JSON lines, and copies of its repositories."`
	Import     importCommand     `cmd:"" help:"Offer events of a file to a running system, and push the repositories that belong to them."`
	Check      checkCommand      `cmd:"" help:"Check that the log, the indexes and the repositories fit together. Exit status 0: clean, 1: findings, 2: could not check."`
	Version    version           `cmd:"" help:"Print the version, the commit and the Go version."`
	Help       struct{}          `cmd:"" help:"Print the help of a command: tendril help COMMAND."`

	Completion completion `cmd:"" help:"Print the code that sets up completion: source <(tendril completion bash)."`

	Man manCommand `cmd:"" hidden:"" help:"Print the man page."`

	HelpAll     config.HelpAll   `help:"Print help with all settings and exit."`
	VersionFlag kong.VersionFlag `name:"version" help:"Print the version and exit."`
}

func main() {
	status, err := 0, error(nil)
	if program, unknown := os.Executable(); os.Getpid() == firstProcess && unknown == nil {
		status, err = reap(program, os.Args)
	} else {
		err = run(os.Args[1:])
	}
	if err != nil {
		status = 1
	}
	if exit, ok := errors.AsType[*exitStatus](err); ok {
		status, err = exit.status, exit.error
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, check.Paint(colours(os.Stderr), check.Red, "tendril:"), err)
	}
	os.Exit(status)
}

func run(args []string) error {
	src := config.Process()
	parser, err := config.NewParser(&grammar{}, src, kong.Name("tendril"), kong.Bind(src),
		kong.Description("Tendril, a GRASP server: hosts git repositories whose owners speak through signed nostr events."))
	if err != nil {
		return err
	}
	kongcompletion.Register(parser)
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--relay-owner-nsec") }) {
		return misused("NGIT_RELAY_OWNER_NSEC must not be given as a flag, which every user of this machine can read: " +
			"set it in the environment or in .env, or keep the key in a file or a systemd credential")
	}
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help":
		args = append(args[1:], "--help")
	}
	command, err := parser.Parse(args)
	if err == nil {
		return command.Run()
	}
	err = config.Sentence(err)
	if wrong, is := errors.AsType[*config.Error](err); is && wrong.IsSetting() && args[0] != "check" {
		return err
	}
	return &exitStatus{2, err} // of check it is no finding
}

// misused is the error of a command line that means nothing.
func misused(format string, args ...any) error { return &exitStatus{2, fmt.Errorf(format, args...)} }

type up struct {
	config.Settings `embed:""`
}

// Run implements the command.
func (u *up) Run(src *config.Source) error {
	settings, err := u.Complete(src)
	if err != nil {
		return err
	}
	return node.Serve("up", settings, false, append(services(), greeting)...)
}

// services returns all services in the order of their start. They stop in reverse: clients and
// other relays first, and ingest last, because what the others finish needs its decision.
func services() []node.Service {
	return []node.Service{
		{Name: "ingest", Run: ingest.Run, Provisions: true},
		{Name: "purgatory", Run: purgatory.Run, Asks: true},
		{Name: "discovery", Run: discovery.Run, Asks: true},
		{Name: "relayconn", Run: relayconn.Run, Asks: true},
		{Name: "gateway", Run: gateway.Run},
	}
}

// serviceName is one argument. (A []string would be one argument with commas, as settings have it.)
type serviceName string

// runCommand is `tendril run`: one service or several in a process, which meet others on a shared
// NATS.
type runCommand struct {
	Services []serviceName `arg:"" name:"service" enum:"ingest,purgatory,discovery,relayconn,gateway" help:"Services to run: ingest, purgatory, discovery, relayconn, gateway."`

	config.Settings `embed:""`
}

// Run implements the command.
func (r *runCommand) Run(src *config.Source) error {
	settings, err := r.Complete(src)
	if err != nil {
		return err
	}
	name, services := chosen(r.Services)
	return node.Serve(name, settings, true, services...)
}

// chosen returns the named services in the order of [services], and the name of a process that has
// them. Its index has a folder of this name, so that processes with different services may share
// NGIT_RELAY_DATA_PATH.
func chosen(named []serviceName) (name string, chosen []node.Service) {
	var names []string
	for _, s := range services() {
		if slices.Contains(named, serviceName(s.Name)) {
			names, chosen = append(names, s.Name), append(chosen, s)
		}
	}
	return strings.Join(names, "-"), chosen
}

// greeting tells the operator where everything is, once it is ready, and that the process stops. It
// starts last, so it is the first to stop.
var greeting = node.Service{Name: "greeting", Run: func(ctx context.Context, n *node.Node) error {
	for len(n.Ready.Failing()) > 0 || n.Announced(node.FrontDoor) == "" {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
	fmt.Print(welcome(n))
	<-ctx.Done()
	fmt.Println("stopping")
	return nil
}}

// welcome is what is printed once everything is ready. Its first line is stable: scripts wait for
// it and read the address.
func welcome(n *node.Node) string {
	s, door := n.Settings, n.Announced(node.FrontDoor)
	nats, data := bus.Redacted(s.NATSURL), "events in "+s.RelayDataPath
	if url := n.Bus.ClientURL(); url != "" {
		nats = url + " (nats sub 'grasp.>' -s " + url
		if s.NATSPassword != "" {
			nats += " --user=" + proto.UserOperator + " --password=…"
		}
		nats += ")"
	}
	if s.DatabaseBackend == "memory" {
		data = "events in memory"
	}
	return fmt.Sprintf(`listening on %s
  relay    ws%s (announced as %s)
  git      %s/<npub>/<identifier>.git
  NATS     %s
  data     %s, git in %s
  version  %s
`, door, strings.TrimPrefix(door, "http"), s.Address(), door,
		cmp.Or(nats, "embedded, listening nowhere (NGIT_NATS_LISTEN)"), data, s.GitDataPath, obs.Version())
}

// loginsCommand makes and rotates the logins of a NATS server that several processes share.
type loginsCommand struct {
	Init   loginsInit   `cmd:"" help:"Make a login for each service and for the operator, in FOLDER, and the NATS server's users.conf. Run again, it keeps all passwords and writes again what each user may do: do so with a new version of tendril."`
	Rotate loginsRotate `cmd:"" help:"Give users a new name and password beside the old ones, which stay valid until retire."`
	Retire loginsRetire `cmd:"" help:"Take away the names and passwords that rotate has replaced."`
}

// loginsFolder is what the commands work on.
type loginsFolder struct {
	Folder   string   `arg:"" help:"Folder of the logins: users.conf and a file USER.login for each user."`
	Users    []string `arg:"" optional:"" name:"user" help:"Only these users."`
	printing `embed:""`
}

type (
	loginsInit   struct{ loginsFolder }
	loginsRotate struct{ loginsFolder }
	loginsRetire struct{ loginsFolder }
)

// Run implements the command.
func (c *loginsInit) Run() error {
	return c.do(logins.Init, "is up to date; the logins are beside it")
}

// Run implements the command.
func (c *loginsRotate) Run() error {
	return c.do(logins.Rotate,
		"has new users beside the old ones: let the NATS servers reload it, give the services their new logins, then retire "+
			"the old ones")
}

// Run implements the command.
func (c *loginsRetire) Run() error {
	return c.do(logins.Retire, "has only the logins beside it: let the NATS servers reload it")
}

// do does it and says what was done. Passwords are never printed.
func (f loginsFolder) do(do func(folder string, users ...string) error, done string) error {
	if err := do(f.Folder, f.Users...); err != nil {
		return err
	}
	file := filepath.Join(f.Folder, logins.UsersFile)
	return f.print([]string{file, done}, func(w io.Writer) { fmt.Fprintln(w, file, done) })
}

type version struct{}

// completion is `tendril completion`.
type completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run implements the command. What it prints is code alone, so that a shell can source it.
func (c completion) Run(ctx *kong.Context) error {
	return (&kongcompletion.Completion{Shell: c.Shell, Code: true}).Run(ctx)
}

// Run implements the command.
func (version) Run() error {
	fmt.Printf("tendril %s\ncommit  %s\ngo      %s\n", obs.Version(), obs.Commit(), runtime.Version())
	return nil
}
