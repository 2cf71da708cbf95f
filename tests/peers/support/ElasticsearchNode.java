import java.nio.file.Path;
import java.util.Map;
import java.util.Set;

import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.plugins.PluginsLoader;

/**
 * One node of Elasticsearch 8 or later, from jars alone: no distribution, so no security and no scripts.
 * Argument: its folder, with its settings in config/ and its plugins in modules/.
 */
public class ElasticsearchNode {
    public static void main(String[] arguments) throws Exception {
        LogConfigurator.configureESLogging();
        Settings settings = Settings.builder().put("path.home", arguments[0]).build();
        var environment = InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "peer");
        var modules = PluginsLoader.loadModulesBundles(Path.of(arguments[0], "modules"));
        new Node(environment, PluginsLoader.createPluginsLoader(modules, Set.of(), Map.of())).start();
        Thread.currentThread().join();
    }
}
