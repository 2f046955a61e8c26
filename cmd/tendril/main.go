// Command tendril is a GRASP server: `tendril up` runs every service in one process over an
// embedded NATS (docs/architecture.md), `tendril run` some of them as one process of several.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"tendril.dev/lib/config"
	"tendril.dev/lib/node"
	"tendril.dev/lib/obs"
)

type grammar struct {
	Up      up             `cmd:"" help:"Run all services in one process, with an embedded NATS unless NGIT_NATS_URL names another."`
	Run     runs           `cmd:"" help:"Run some of the services, for a system of several processes around one NATS server (NGIT_NATS_URL)."`
	Status  shows          `cmd:"" help:"Show how a running system stands: relays, shards, held events, queues, and how far its processes are behind."`
	Why     whys           `cmd:"" help:"Tell the story of an event, a repository or a relay: accepted, held, asked for, refused, and what can be done."`
	Tap     taps           `cmd:"" help:"Show what happens, one line a step: relay, author, event, verdict, git data."`
	Repo    repoCommand    `cmd:"" help:"List, show, restore and remove repositories that are not hosted any more, in a running system."`
	Ban     banCommand     `cmd:"" help:"Ban authors, repositories, identifiers or events in a running system, at once: what is stored is not served any more, and nothing new is taken."`
	Unban   unbanCommand   `cmd:"" help:"End bans: what was not removed is served again."`
	Bans    bansCommand    `cmd:"" help:"List what is banned. The blacklist settings are not among it."`
	Reports reportsCommand `cmd:"" help:"List the reports (NIP-56) about authors, events and repositories, the newest first, and whether these are banned."`
	Logins  loginsCommand  `cmd:"" help:"Make and rotate the logins of a NATS server that several processes share."`
	Export  exports        `cmd:"" help:"Write the events of a running system as JSON lines, and copies of its repositories."`
	Import  imports        `cmd:"" help:"Offer events of a file to a running system, and push the repositories that belong to them."`
	Check   checks         `cmd:"" help:"Check that the log, the indexes and the repositories fit together. Exit status 0: clean, 1: findings, 2: could not check."`
	Version version        `cmd:"" help:"Print the version, the commit and the Go version."`
	Help    struct{}       `cmd:"" help:"Print the help of a command: tendril help COMMAND."`

	Completion kongcompletion.Completion `cmd:"" help:"Print what sets up completion for bash, zsh or fish."`

	HelpAll     config.HelpAll   `help:"Print help with all settings and exit."`
	VersionFlag kong.VersionFlag `name:"version" help:"Print the version and exit."`
}

func main() {
	err := run(os.Args[1:])
	status := 0
	if err != nil {
		status = 1
	}
	if exit, ok := errors.AsType[*exitStatus](err); ok {
		status, err = exit.status, exit.cause
	}
	if err != nil {
		name := "tendril:"
		if colours(os.Stderr) {
			name = "\x1b[31mtendril:\x1b[0m"
		}
		fmt.Fprintf(os.Stderr, "%s %s\n", name, err)
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
	if err = config.Sentence(err); args[0] == "check" {
		return &exitStatus{exitUnchecked, err} // which is no finding
	}
	return err
}

type up struct {
	config.Settings `embed:""`
}

// Run implements the command.
func (u *up) Run(src *config.Source) error {
	settings, err := u.Complete(src)
	if err != nil {
		return err
	}
	return node.Serve("up", settings, false, append(services(), greeting(os.Stdout))...)
}

type version struct{}

// Run implements the command.
func (version) Run() error {
	fmt.Printf("tendril %s\ncommit  %s\ngo      %s\n", obs.Version(), obs.Commit(), runtime.Version())
	return nil
}
