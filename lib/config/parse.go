package config

import (
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"tendril.dev/lib/nip34"
	"tendril.dev/lib/obs"
)

// Parse reads the settings of a program that has nothing but settings: flags over environment over `.env` over defaults, checked. name
// is the program's, for help; `--help` and `--version` end the process. An error is one sentence for the operator.
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

// NewParser makes a parser of a grammar that holds Settings somewhere, alone or as the flags of a command. What flags do not say, src
// does. After parsing, [Settings.Complete] must be called.
func NewParser(grammar any, src *Source, options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(grammar, append([]kong.Option{
		kong.Vars{"version": "tendril " + obs.Version()},
		kong.PostBuild(hideEnvironment),
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

// Complete checks settings that were just parsed, brings the domain to its one spelling, and tells of names in src that are no settings.
func (s Settings) Complete(src *Source) (Settings, error) {
	if err := s.Check(); err != nil {
		return s, err
	}
	var err error
	if s.Domain, err = nip34.NormalizeDomain(s.Domain); err != nil {
		return s, err // not reached: checked
	}
	s.Warnings = src.strangers()
	if s.TrustForwardedFor && len(s.TrustedProxies) == 0 {
		s.Warnings = append(s.Warnings, "NGIT_TRUST_FORWARDED_FOR believes any proxy with a loopback, private or link-local address; "+
			"name yours in NGIT_TRUSTED_PROXIES instead")
	}
	return s, nil
}

// Sentence takes out of a parser's error what an operator needs to read.
func Sentence(err error) error {
	var wrong *Error
	if errors.As(err, &wrong) {
		return wrong
	}
	return err
}

// hideEnvironment keeps kong from reading the environment by itself: it would take an empty value for a value, and it knows no `.env`.
func hideEnvironment(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			flag.Envs, flag.Tag.Envs = nil, nil
		}
		return next(nil)
	})
}

// Process is where the settings of this process come from: its environment, and `.env`.
func Process() *Source { return &Source{Environ: os.Environ(), Dir: "."} }
