package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"tendril.dev/lib/nip34"
	"tendril.dev/lib/obs"
)

// Parse reads the settings of a program that has nothing but settings: flags over environment over
// `.env` over defaults, checked. name is the program's, for help; `--help` and `--version` end the
// process. An error is one sentence for the operator.
func Parse(name string, args []string) (Settings, error) {
	var grammar struct {
		Settings `embed:""`
		Version  kong.VersionFlag `help:"Print the version and exit."`
	}
	src := Process()
	parser, err := NewParser(&grammar, src, kong.Name(name), kong.Description("The "+name+" service of Tendril, a GRASP server."))
	if err != nil {
		return Settings{}, err
	}
	if _, err := parser.Parse(args); err != nil {
		return Settings{}, Sentence(err)
	}
	return grammar.Complete(src)
}

// NewParser makes a parser of a grammar that holds Settings somewhere, alone or as the flags of a
// command. What flags do not say, src does. After parsing, [Settings.Complete] must be called.
func NewParser(grammar any, src *Source, options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(grammar, append([]kong.Option{
		kong.Vars{"version": "tendril " + obs.Version()},
		kong.PostBuild(ourFlags),
		kong.Resolvers(kong.ResolverFunc(src.resolve)),
		kong.ValueFormatter(func(v *kong.Value) string { return describe(v.Help, v.Tag.Get) }),
		kong.ExplicitGroups(groups),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 132}),
		mappers{},
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("declare settings: %w", err)
	}
	return parser, nil
}

// Complete checks settings that were just parsed, brings the domain to its one spelling, drops
// malformed entries of lists of who is not welcome, and tells of them and of names in src that are
// no settings.
func (s Settings) Complete(src *Source) (Settings, error) {
	if err := src.refuse(); err != nil {
		return s, err
	}
	s.Domain = strings.TrimRight(s.Domain, "/")
	dropped := s.Policy.dropMalformed()
	if err := s.Check(); err != nil {
		return s, err
	}
	var err error
	if s.Domain, err = nip34.NormalizeDomain(s.Domain); err != nil {
		return s, err // not reached: checked
	}
	s.Warnings = slices.Concat(src.strangers(), dropped, s.Policy.idle(), s.Bus.warnings())
	if s.TrustForwardedFor && len(s.TrustedProxies) == 0 {
		s.Warnings = append(s.Warnings, "NGIT_TRUST_FORWARDED_FOR believes any proxy with a loopback, private or link-local address; "+
			"name yours in NGIT_TRUSTED_PROXIES instead")
	}
	return s, nil
}

// Sentence takes out of a parser's error what an operator needs to read: what is wrong with a
// setting, or with the command line, and then which `--help` says what would be right.
func Sentence(err error) error {
	if wrong, ok := errors.AsType[*Error](err); ok {
		return wrong
	}
	if parse, ok := errors.AsType[*kong.ParseError](err); ok {
		return fmt.Errorf("%w (see \"%s --help\")", err, commandLine(parse.Context))
	}
	return err
}

// commandLine is the program and the commands that were understood: "tendril repo".
func commandLine(c *kong.Context) string {
	line := c.Model.Name
	for _, step := range c.Path {
		if step.Command != nil {
			line += " " + step.Command.Name
		}
	}
	return line
}

// ourFlags names every flag for its setting: NGIT_SYNC_BOOTSTRAP_RELAY_URL is
// --sync-bootstrap-relay-url, as other GRASP servers have it. A declared name that differs works
// too. It also keeps kong from reading the environment by itself: that would take an empty value
// for a value, and it knows no `.env`.
func ourFlags(k *kong.Kong) error {
	k.Model.HelpFlag.Help = "Print this help and exit."
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			flag.Envs, flag.Tag.Envs = nil, nil
			if env := flag.Tag.Get("env"); env != "" && flag.Name != flagName(env) {
				flag.Aliases = append(flag.Aliases, flag.Name)
				flag.Name = flagName(env)
			}
		}
		return next(nil)
	})
}

// flagName is the flag of a setting, without the dashes.
func flagName(env string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(env, prefix)), "_", "-")
}

// Process is where the settings of this process come from: its environment, and `.env`.
func Process() *Source { return &Source{Environ: os.Environ(), Dir: "."} }
