// A cloud controller manager for OpenStack: Kubernetes' own controllers (k8s.io/cloud-provider) with the provider for OpenStack that 1.20 still
// has in its tree and from which the separate project's was made. Called as that one's program is, with its flags. Built inside Kubernetes' own
// tree by up.sh.
package main

import (
	"fmt"
	"math/rand"
	"os"
	"time"

	"github.com/spf13/pflag"

	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	_ "k8s.io/legacy-cloud-providers/openstack"
)

func main() {
	rand.Seed(time.Now().UnixNano())
	logs.InitLogs()
	err := run()
	logs.FlushLogs()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	given, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		return err
	}
	// The command parses all flags again; the cloud has to be there first.
	early := pflag.NewFlagSet("cloud", pflag.ContinueOnError)
	early.ParseErrorsWhitelist.UnknownFlags = true
	name := early.String("cloud-provider", "", "")
	file := early.String("cloud-config", "", "")
	if err := early.Parse(os.Args[1:]); err != nil {
		return err
	}
	cloud, err := cloudprovider.InitCloudProvider(*name, *file)
	if err != nil {
		return err
	}
	if cloud == nil {
		return fmt.Errorf("--cloud-provider=%q gives no cloud", *name)
	}
	flags := pflag.NewFlagSet("all", pflag.ContinueOnError)
	controllers := []string{"cloud-node", "cloud-node-lifecycle", "service", "route"}
	disabled := app.ControllersDisabledByDefault.List()
	for _, set := range given.Flags(controllers, disabled).FlagSets {
		flags.AddFlagSet(set)
	}
	flags.ParseErrorsWhitelist.UnknownFlags = true
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	config, err := given.Config(controllers, disabled)
	if err != nil {
		return err
	}
	cloud.Initialize(config.ClientBuilder, make(chan struct{}))
	if user, ok := cloud.(cloudprovider.InformerUser); ok {
		user.SetInformers(config.SharedInformers)
	}
	command := app.NewCloudControllerManagerCommand(given, config, app.DefaultControllerInitializers(config.Complete(), cloud))
	pflag.CommandLine.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	return command.Execute()
}
